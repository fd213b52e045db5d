-- Share of correct prompts that stay correct at a checkpoint when neurons of their own heuristics
-- are ablated (Sec. 5, Fig. 10c).
--
-- subject            VARCHAR  the model at this checkpoint
-- last               VARCHAR  the last checkpoint of its training, a model of its own, whose late
--                             layers are ablated
-- step               INTEGER  optimiser steps so far
-- operator           VARCHAR  add, subtract, multiply or divide
-- arm                VARCHAR  which neurons are ablated: heuristic or control, as in
--                             trajectory_interventions
-- neurons_per_layer  INTEGER  number of neurons to be set to 0 in each late layer
-- neurons            DOUBLE   mean number of neurons that were set to 0, in all layers together;
--                             below neurons_per_layer x layers if an arm has fewer neurons
-- accuracy           DOUBLE   share of prompts still answered correctly, 0 to 1
-- accuracy_std       DOUBLE   standard deviation of the accuracy over seeds of pairs
-- prompts            BIGINT   number of evaluation prompts; the model at this checkpoint answers
--                             all of them correctly
-- majority_accuracy  DOUBLE   accuracy of always predicting the most frequent answer of these
--                             prompts, 0 to 1
with
    interventions as (
        select distinct intervention, operator, arm, neurons_per_layer, neurons
        from trajectory_interventions where arm is not null
    ),
    measured as (  -- each seed, and all seeds together (seed is null)
        select operator, arm, neurons_per_layer, seed, avg(neurons) as neurons,
            avg(correct::integer) as accuracy, count(*) as prompts,
            majority_accuracy(answer_token) as majority_accuracy
        from runs
        join interventions using (intervention)
        join (select pair, seed, answer_token from pairs) using (pair)
        where experiment = 'trajectory'
        group by grouping sets ((operator, arm, neurons_per_layer, seed),
            (operator, arm, neurons_per_layer))
    )
select
    $subject as subject, $last as last, $step::integer as step, operator, arm, neurons_per_layer,
    any_value(neurons) filter (seed is null) as neurons,
    any_value(accuracy) filter (seed is null) as accuracy,
    stddev_samp(accuracy) filter (seed is not null) as accuracy_std, any_value(prompts)
        filter (seed is null) as prompts,
    any_value(majority_accuracy) filter (seed is null) as majority_accuracy
from measured
group by operator, arm, neurons_per_layer
order by operator, arm, neurons_per_layer
