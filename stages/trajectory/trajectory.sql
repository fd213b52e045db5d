-- The bag over training: how much of the last checkpoint's bag is present at a checkpoint, and what
-- it carries (Sec. 5, Fig. 10a and 10b), with the accuracy on trained and on held-out cells. Late
-- neurons that are not kept take their mean, pooled over operators. Faithfulness is as in
-- bag_alone: 0 is nothing, 1 is everything. All columns from faithfulness_all to correct_nothing
-- are null if no prompt is answered correctly.
--
-- subject                     VARCHAR  the model at this checkpoint
-- last                        VARCHAR  the last checkpoint of its training, a model of its own
-- step                        INTEGER  optimiser steps so far
-- operator                    VARCHAR  add, subtract, multiply or divide
-- accuracy_trained            DOUBLE   share of the cells trained on that are answered correctly, 0
--                                      to 1
-- accuracy_held_out           DOUBLE   share of the held-out cells that are answered correctly, 0
--                                      to 1
-- pairs                       BIGINT   number of pairs of a late neuron and a heuristic that it has
--                                      at this checkpoint (trajectory_neurons)
-- shared_with_last            DOUBLE   share of the last checkpoint's pairs that are present at
--                                      this checkpoint, 0 to 1; null if it has none
-- shared_by_chance            DOUBLE   share expected if each heuristic's neurons at this
--                                      checkpoint were random neurons of their layer, 0 to 1
-- neurons                     BIGINT   number of late neurons that have a heuristic at this
--                                      checkpoint
-- neurons_shared              BIGINT   number of these neurons that have the same heuristic at the
--                                      last checkpoint
-- faithfulness_all            DOUBLE   faithfulness with only the neurons counted in neurons kept
-- faithfulness_all_std        DOUBLE   standard deviation of faithfulness_all over seeds of pairs
-- faithfulness_shared         DOUBLE   faithfulness with only the neurons counted in neurons_shared
--                                      kept
-- faithfulness_shared_std     DOUBLE   standard deviation of faithfulness_shared over seeds of
--                                      pairs
-- faithfulness_drawn          DOUBLE   faithfulness with neurons_shared random neurons of those
--                                      counted in neurons kept, mean over draws
-- faithfulness_drawn_std      DOUBLE   standard deviation of faithfulness_drawn over seeds of pairs
-- faithfulness_random         DOUBLE   faithfulness with as many random late neurons kept as are
--                                      counted in neurons, mean over draws
-- faithfulness_random_std     DOUBLE   standard deviation of faithfulness_random over seeds of
--                                      pairs
-- correct_all                 DOUBLE   share of prompts answered correctly with only the neurons
--                                      counted in neurons kept, 0 to 1; 1 with everything kept
-- correct_shared              DOUBLE   share of prompts answered correctly with only the neurons
--                                      counted in neurons_shared kept, 0 to 1
-- correct_drawn               DOUBLE   share of prompts answered correctly with the neurons of
--                                      faithfulness_drawn kept, 0 to 1
-- correct_random              DOUBLE   share of prompts answered correctly with the neurons of
--                                      faithfulness_random kept, 0 to 1
-- correct_nothing             DOUBLE   share of prompts answered correctly with no late neuron
--                                      kept, 0 to 1
-- prompts                     BIGINT   number of evaluation prompts in these means
-- majority_accuracy           DOUBLE   accuracy of always predicting the most frequent answer of
--                                      the evaluation prompts, 0 to 1; null if there are none
-- majority_accuracy_trained   DOUBLE   accuracy of always predicting the most frequent answer of
--                                      the cells trained on, 0 to 1
-- majority_accuracy_held_out  DOUBLE   accuracy of always predicting the most frequent answer of
--                                      the held-out cells, 0 to 1
with
    present as (select * from trajectory_neurons where subject = $subject),
    ending as (select operator, layer, neuron, heuristic from trajectory_neurons
        where subject = $last),
    width as (select layer, count(distinct neuron) as neurons from naming group by layer),
    expected as (  -- pairs shared by chance, summed over heuristics and layers
        select operator, sum(last_pairs * coalesce(pairs, 0) / width.neurons) as pairs,
            sum(last_pairs) as last_pairs
        from (select operator, heuristic, layer, count(*) as last_pairs from ending group by all)
        left join (select operator, heuristic, layer, count(*) as pairs from present group by all)
            using (operator, heuristic, layer)
        join width using (layer)
        group by operator
    ),
    counted as (
        select operator, count(*) as pairs, count(*) filter (shared) as shared,
            count(distinct (layer, neuron)) as neurons,
            count(distinct (layer, neuron)) filter (shared) as neurons_shared
        from present group by operator
    ),
    solved as (
        select operator, any_value(accuracy) filter (split = 'train') as accuracy_trained,
            any_value(accuracy) filter (split = 'held-out') as accuracy_held_out,
            any_value(majority_accuracy) filter (split = 'train') as majority_trained,
            any_value(majority_accuracy) filter (split = 'held-out') as majority_held_out
        from accuracy group by operator
    ),
    answers as (
        select operator, kept, seed, pair, answer_token, avg(correct::integer) as correct,
            avg(normal_logit(runs)) as nl
        from runs
        join (select distinct intervention, kept from trajectory_interventions
            where kept is not null) using (intervention)
        join (select pair, operator, seed, answer_token from pairs) using (pair)
        where experiment = 'trajectory'
        group by all
    ),
    measured as (  -- each seed, and all seeds together (seed is null)
        select operator, kept, seed, avg(nl) as nl, avg(correct) as correct, count(*) as prompts,
            majority_accuracy(answer_token) as majority
        from answers group by grouping sets ((operator, kept, seed), (operator, kept))
    ),
    faithful as (
        select operator, kept, seed, correct, prompts, majority,
            faithfulness(nl, any_value(nl) filter (kept = 'nothing') over whole,
                any_value(nl) filter (kept = 'everything') over whole)
                as faithfulness
        from measured
        window whole as (partition by operator, seed)
    ),
    spread as (
        select operator, kept, any_value(prompts) filter (seed is null) as prompts,
            any_value(majority) filter (seed is null) as majority, {
                'faithfulness': any_value(faithfulness) filter (seed is null),
                'correct': any_value(correct) filter (seed is null),
                'std': stddev_samp(faithfulness) filter (seed is not null)
            } as measures
        from faithful group by operator, kept
    ),
    carried as (
        select operator, any_value(prompts) as prompts, any_value(majority) as majority,
            any_value(measures) filter (kept = 'all') as "all",
            any_value(measures) filter (kept = 'shared') as shared,
            any_value(measures) filter (kept = 'drawn') as drawn,
            any_value(measures) filter (kept = 'random') as random,
            any_value(measures) filter (kept = 'nothing') as nothing
        from spread group by operator
    )
select
    $subject as subject, $last as last, $step::integer as step, operator, accuracy_trained,
    accuracy_held_out,
    coalesce(counted.pairs, 0) as pairs,
    coalesce(counted.shared, 0) / last_pairs as shared_with_last,
    expected.pairs / last_pairs as shared_by_chance, coalesce(neurons, 0) as neurons,
    coalesce(neurons_shared, 0) as neurons_shared,
    "all".faithfulness as faithfulness_all, "all".std as faithfulness_all_std,
    carried.shared.faithfulness as faithfulness_shared,
    carried.shared.std as faithfulness_shared_std,
    drawn.faithfulness as faithfulness_drawn, drawn.std as faithfulness_drawn_std,
    random.faithfulness as faithfulness_random, random.std as faithfulness_random_std,
    "all".correct as correct_all, carried.shared.correct as correct_shared,
    drawn.correct as correct_drawn,
    random.correct as correct_random, nothing.correct as correct_nothing,
        coalesce(prompts, 0) as prompts,
    majority as majority_accuracy, majority_trained as majority_accuracy_trained,
    majority_held_out as majority_accuracy_held_out
from solved
left join counted using (operator)
left join expected using (operator)
left join carried using (operator)
order by operator
