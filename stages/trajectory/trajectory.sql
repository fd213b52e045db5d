-- The bag over training: how much of the last point's bag is there at a point, and what it carries
-- (Sec. 5, Fig. 10a and 10b), beside the accuracy on trained and on held-out cells. Late neurons
-- that are not kept take their mean, pooled over operators; faithfulness is as in bag_alone.
--
-- subject                     VARCHAR  the model at this point
-- last                        VARCHAR  the subject that training ended with
-- step                        INTEGER  optimiser steps so far
-- operator                    VARCHAR  add, subtract, multiply or divide
-- accuracy_trained            DOUBLE   share of the cells trained on that are answered correctly, 0
--                                      to 1
-- accuracy_held_out           DOUBLE   share of the cells held out
-- pairs                       BIGINT   pairs of late neuron and a heuristic that it stands for at
--                                      this point (trajectory_neurons)
-- shared_with_last            DOUBLE   share of the last point's pairs that are there already; null
--                                      where it has none
-- shared_by_chance            DOUBLE   the same if each heuristic's neurons at this point were any
--                                      of their layer
-- neurons                     BIGINT   late neurons that stand for a heuristic
-- neurons_shared              BIGINT   of these, those that stand for one that they stand for at
--                                      the last point, too
-- faithfulness_all            DOUBLE   with neurons kept; null, like all down to correct_nothing,
--                                      where no prompt is answered correctly
-- faithfulness_all_std        DOUBLE   standard deviation of that over seeds of pairs
-- faithfulness_shared         DOUBLE   with neurons_shared kept
-- faithfulness_shared_std     DOUBLE   standard deviation of that
-- faithfulness_drawn          DOUBLE   with as many of neurons, drawn at random, kept; mean of all
--                                      draws
-- faithfulness_drawn_std      DOUBLE   standard deviation of that
-- faithfulness_random         DOUBLE   with as many late neurons as neurons, drawn at random, kept;
--                                      mean of all draws
-- faithfulness_random_std     DOUBLE   standard deviation of that
-- correct_all                 DOUBLE   share of prompts answered correctly with neurons kept, 0 to
--                                      1; all are with everything kept
-- correct_shared              DOUBLE   with neurons_shared kept
-- correct_drawn               DOUBLE   with as many drawn
-- correct_random              DOUBLE   with random ones
-- correct_nothing             DOUBLE   with no late neuron kept
-- prompts                     BIGINT   evaluation prompts in these means
-- majority_accuracy           DOUBLE   accuracy of always predicting the most frequent answer of
--                                      the evaluation prompts, 0 to 1; null without any
-- majority_accuracy_trained   DOUBLE   accuracy of always predicting the most frequent answer of
--                                      the cells trained on, 0 to 1
-- majority_accuracy_held_out  DOUBLE   accuracy of always predicting the most frequent answer of
--                                      the cells held out, 0 to 1
with
    here as (select * from trajectory_neurons where subject = $subject),
    ending as (select operator, layer, neuron, heuristic from trajectory_neurons where subject = $last),
    width as (select layer, count(distinct neuron) as neurons from naming group by layer),
    expected as (  -- of an operator's pairs at the end, by heuristic and layer
        select operator, sum(last_pairs * coalesce(pairs, 0) / width.neurons) as pairs, sum(last_pairs) as last_pairs
        from (select operator, heuristic, layer, count(*) as last_pairs from ending group by all)
        left join (select operator, heuristic, layer, count(*) as pairs from here group by all) using (operator, heuristic, layer)
        join width using (layer)
        group by operator
    ),
    counted as (
        select operator, count(*) as pairs, count(*) filter (shared) as shared, count(distinct (layer, neuron)) as neurons,
            count(distinct (layer, neuron)) filter (shared) as neurons_shared
        from here group by operator
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
        join (select distinct intervention, kept from trajectory_interventions where kept is not null) using (intervention)
        join (select pair, operator, seed, answer_token from pairs) using (pair)
        where experiment = 'trajectory'
        group by all
    ),
    measured as (  -- of each seed, and of all of them where seed is null
        select operator, kept, seed, avg(nl) as nl, avg(correct) as correct, count(*) as prompts,
            majority_accuracy(answer_token) as majority
        from answers group by grouping sets ((operator, kept, seed), (operator, kept))
    ),
    faithful as (
        select operator, kept, seed, correct, prompts, majority,
            faithfulness(nl, any_value(nl) filter (kept = 'nothing') over whole, any_value(nl) filter (kept = 'everything') over whole)
                as faithfulness
        from measured
        window whole as (partition by operator, seed)
    ),
    spread as (
        select operator, kept, any_value(prompts) filter (seed is null) as prompts,
            any_value(majority) filter (seed is null) as majority, {
                'faithfulness': any_value(faithfulness) filter (seed is null), 'correct': any_value(correct) filter (seed is null),
                'std': stddev_samp(faithfulness) filter (seed is not null)
            } as measures
        from faithful group by operator, kept
    ),
    carried as (
        select operator, any_value(prompts) as prompts, any_value(majority) as majority,
            any_value(measures) filter (kept = 'all') as "all",
            any_value(measures) filter (kept = 'shared') as shared, any_value(measures) filter (kept = 'drawn') as drawn,
            any_value(measures) filter (kept = 'random') as random, any_value(measures) filter (kept = 'nothing') as nothing
        from spread group by operator
    )
select
    $subject as subject, $last as last, $step::integer as step, operator, accuracy_trained, accuracy_held_out,
    coalesce(counted.pairs, 0) as pairs, coalesce(counted.shared, 0) / last_pairs as shared_with_last,
    expected.pairs / last_pairs as shared_by_chance, coalesce(neurons, 0) as neurons, coalesce(neurons_shared, 0) as neurons_shared,
    "all".faithfulness as faithfulness_all, "all".std as faithfulness_all_std,
    carried.shared.faithfulness as faithfulness_shared, carried.shared.std as faithfulness_shared_std,
    drawn.faithfulness as faithfulness_drawn, drawn.std as faithfulness_drawn_std,
    random.faithfulness as faithfulness_random, random.std as faithfulness_random_std,
    "all".correct as correct_all, carried.shared.correct as correct_shared, drawn.correct as correct_drawn,
    random.correct as correct_random, nothing.correct as correct_nothing,
        coalesce(prompts, 0) as prompts,
    majority as majority_accuracy, majority_trained as majority_accuracy_trained,
    majority_held_out as majority_accuracy_held_out
from solved
left join counted using (operator)
left join expected using (operator)
left join carried using (operator)
order by operator
