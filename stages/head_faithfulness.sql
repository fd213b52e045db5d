-- How much of the model's answer each circuit of heads recovers (Eq. 2, Fig. 11).
-- Eq. 2's normalised logit is taken on logits centred over the vocabulary, since it changes when all logits shift.
--
-- subject         VARCHAR   the model
-- operator        VARCHAR   add, subtract, multiply or divide
-- circuit         VARCHAR   everything, nothing, effect, logit_effect or random
-- heads           SMALLINT  heads in the circuit
-- seed            INTEGER   of a random order; null otherwise
-- faithfulness    DOUBLE    (mean NL of the circuit - of nothing) / (of everything - of nothing); null where these two are equal
-- mean_of_ratios  DOUBLE    mean of each prompt's ratio, as the study's code has it; prompts whose ratio divides by 0 left out
-- ci_low          DOUBLE    lower end of the faithfulness's bootstrap interval, over seeds and prompts
-- ci_high         DOUBLE    upper end
-- accuracy        DOUBLE    share of prompts answered correctly, 0 to 1
-- prompts         BIGINT    how many prompts that is a share of
with
    circuits as (select distinct intervention, operator, circuit, heads, seed from head_circuit_interventions),
    normalised as (  -- where all logits are equal nothing speaks for the answer
        select intervention, pair, correct,
            coalesce((answer_logit::double - mean_logit) / nullif(max_logit::double - mean_logit, 0), 0) as logit
        from runs
    ),
    ends as (  -- both ends of the scale, for each prompt
        select
            pair,
            any_value(logit) filter (where circuit = 'everything') as everything,
            any_value(logit) filter (where circuit = 'nothing') as nothing
        from normalised join circuits using (intervention)
        where circuit in ('everything', 'nothing')
        group by pair
    ),
    measured as (
        select
            intervention,
            (avg(logit) - avg(nothing)) / nullif(avg(everything) - avg(nothing), 0) as faithfulness,
            avg((logit - nothing) / nullif(everything - nothing, 0)) as mean_of_ratios,
            avg(correct::integer) as accuracy, count(*) as prompts,
            list(logit - nothing order by pair) as recovered, list(everything - nothing order by pair) as whole
        from normalised join ends using (pair)
        group by intervention
    ),
    weights as (select operator, weights::double[] as weights from bootstrap_weights where split = 'evaluation'),
    intervals as (
        select
            intervention,
            quantile_cont(
                list_dot_product(recovered, weights) / nullif(list_dot_product(whole, weights), 0),
                [(1 - $confidence) / 2, (1 + $confidence) / 2]
            ) as ends
        from measured join circuits using (intervention) join weights using (operator)
        group by intervention
    )
select
    $subject as subject, operator, circuit, heads, seed, faithfulness, mean_of_ratios,
    intervals.ends[1] as ci_low, intervals.ends[2] as ci_high, accuracy, prompts
from circuits
join measured using (intervention)
left join intervals using (intervention)
order by intervention
