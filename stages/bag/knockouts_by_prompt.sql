-- How many correct prompts survive when their own heuristics' neurons are silenced, and when others
-- are (Sec. 4.2, Fig. 8). Every evaluation prompt has neurons of its own, chosen by
-- prompt_knockout_interventions; all are ones the subject answers correctly.
--
-- subject            VARCHAR  the model
-- operator           VARCHAR  add, subtract, multiply or divide
-- membership         VARCHAR  called or scored, as in heuristic_neurons
-- arm                VARCHAR  heuristic, count, control, contaminated or matched, as there
-- ablation           VARCHAR  zero or mean (pooled over operators)
-- neurons_per_layer  INTEGER  neurons to be silenced in each late layer; 0 is the clean run
-- neurons            DOUBLE   mean number of neurons that were silenced, in all layers; an arm may
--                             have no more
-- accuracy           DOUBLE   share of prompts still answered correctly, 0 to 1
-- ci_low             DOUBLE   lower end of its bootstrap interval, over seeds and prompts
-- ci_high            DOUBLE   upper end
-- logit_change       DOUBLE   mean change of the answer's logit above the mean logit, after -
--                             before
-- prompts            BIGINT   prompts in these means
-- majority_accuracy  DOUBLE   accuracy of always predicting the most frequent answer of these
--                             prompts, 0 to 1
with
    interventions as (  -- one row per patch there
        select distinct intervention, operator, membership, arm, replacement as ablation, neurons_per_layer, neurons
        from prompt_knockout_interventions
    ),
    answers as (from answers_of('prompt_knockout')),
    clean as (
        select pairs.operator, pair, answer_token, correct, logit
        from answers
        join interventions using (intervention)
        join pairs using (pair)
        where arm = 'none'
    ),
    compared as (
        select
            interventions.operator, membership, arm, ablation, neurons_per_layer, neurons, pair,
            answer_token, answers.correct, answers.logit - clean.logit as logit_change
        from answers
        join interventions using (intervention)
        join clean using (pair)
        where arm <> 'none'
        union all
        select operator, membership, arm, ablation, 0, 0, pair, answer_token, correct, 0
        from (select distinct operator, membership, arm, ablation from interventions where arm <> 'none')
        join clean using (operator)
    ),
    measured as (
        select
            operator, membership, arm, ablation, neurons_per_layer, avg(neurons) as neurons, avg(correct) as accuracy,
            avg(logit_change) as logit_change, count(*) as prompts,
            majority_accuracy(answer_token) as majority_accuracy,
                list(correct::double order by pair) as corrects
        from compared group by all
    ),
    intervals as (
        select
            operator, membership, arm, ablation, neurons_per_layer,
            percentile_interval(list_dot_product(corrects, weights) / prompts, $confidence) as edges
        from measured join bootstrap('evaluation') using (operator)
        group by all
    )
select
    $subject as subject, operator, membership, arm, ablation, neurons_per_layer, neurons, accuracy,
    edges[1] as ci_low, edges[2] as ci_high, logit_change, prompts, majority_accuracy
from measured
join intervals using (operator, membership, arm, ablation, neurons_per_layer)
order by operator, membership, arm, ablation, neurons_per_layer
