-- The fewest heads that recover a given share of the answer, compared with random circuits of the
-- same size (Tables 1 and 2). The prompts that choose the number of heads also measure the circuit,
-- whose faithfulness is therefore slightly too high.
--
-- subject              VARCHAR   the model
-- operator             VARCHAR   add, subtract, multiply or divide
-- target               DOUBLE    faithfulness to be reached, 0 to 1
-- heads                SMALLINT  fewest heads, ranked by $ranking, whose circuit reaches the
--                                target; null if no circuit does
-- faithfulness         DOUBLE    faithfulness of that circuit; 0 is nothing, 1 is everything
-- accuracy             DOUBLE    share of prompts that this circuit answers correctly, 0 to 1
-- random_faithfulness  DOUBLE    mean faithfulness of random circuits of equally many heads
-- random_accuracy      DOUBLE    mean accuracy of random circuits of equally many heads, 0 to 1
-- majority_accuracy    DOUBLE    accuracy of always predicting the most frequent answer of the
--                                prompts that circuits are measured on, 0 to 1
with
    targets as (
        select operator, target
        from (select distinct operator from head_faithfulness),
            (select unnest($targets)::double as target)
    ),
    reaching as (
        select operator, target, min(heads) as heads
        from targets join head_faithfulness using (operator)
        where circuit = $ranking and isfinite(faithfulness) and faithfulness >= target
        group by operator, target
    ),
    random as (
        select operator, heads, avg(faithfulness) as random_faithfulness,
            avg(accuracy) as random_accuracy
        from head_faithfulness where circuit = 'random' group by operator, heads
    )
select
    $subject as subject, targets.operator, target, reaching.heads,
    smallest.faithfulness, smallest.accuracy, random_faithfulness, random_accuracy,
    smallest.majority_accuracy
from targets
left join reaching using (operator, target)
left join head_faithfulness as smallest
    on (smallest.operator, smallest.heads, smallest.circuit)
        = (reaching.operator, reaching.heads, $ranking)
left join random on (random.operator, random.heads) = (reaching.operator, reaching.heads)
order by targets.operator, target
