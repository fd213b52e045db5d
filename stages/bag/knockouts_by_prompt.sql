-- Share of correct prompts that stay correct when neurons of their own heuristics are ablated, and
-- when others are (Sec. 4.2, Fig. 8). Every evaluation prompt has its own neurons, which
-- prompt_knockout_interventions chooses. The unablated model answers all these prompts correctly.
--
-- subject            VARCHAR  the model
-- operator           VARCHAR  add, subtract, multiply or divide
-- criterion          VARCHAR  criterion by which neurons have heuristics, as in heuristic_neurons:
--                             fdr or threshold
-- arm                VARCHAR  which neurons are ablated: heuristic, count, control, contaminated or
--                             matched, as in prompt_knockout_interventions
-- ablation           VARCHAR  value that ablated neurons take: zero or mean (pooled over operators)
-- neurons_per_layer  INTEGER  number of neurons to be ablated in each late layer; 0 is the clean
--                             run
-- neurons            DOUBLE   mean number of neurons that were ablated, in all layers together;
--                             below neurons_per_layer x layers if an arm has fewer neurons
-- accuracy           DOUBLE   share of prompts still answered correctly, 0 to 1
-- ci_low             DOUBLE   lower end of the accuracy's bootstrap interval, over seeds and
--                             prompts, 0 to 1
-- ci_high            DOUBLE   upper end of the accuracy's bootstrap interval, 0 to 1
-- logit_change       DOUBLE   mean change of the answer's logit above the mean logit, after -
--                             before
-- prompts            BIGINT   number of prompts in these means
-- majority_accuracy  DOUBLE   accuracy of always predicting the most frequent answer of these
--                             prompts, 0 to 1
with
    interventions as (  -- prompt_knockout_interventions has one row per patch
        select distinct intervention, operator, criterion, arm, replacement as ablation,
            neurons_per_layer, neurons
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
            interventions.operator, criterion, arm, ablation, neurons_per_layer, neurons, pair,
            answer_token, answers.correct, answers.logit - clean.logit as logit_change
        from answers
        join interventions using (intervention)
        join clean using (pair)
        where arm <> 'none'
        union all
        select operator, criterion, arm, ablation, 0, 0, pair, answer_token, correct, 0
        from (select distinct operator, criterion, arm, ablation from interventions
            where arm <> 'none')
        join clean using (operator)
    ),
    measured as (
        select
            operator, criterion, arm, ablation, neurons_per_layer, avg(neurons) as neurons,
            avg(correct) as accuracy,
            avg(logit_change) as logit_change, count(*) as prompts,
            majority_accuracy(answer_token) as majority_accuracy,
                list(correct::double order by pair) as corrects
        from compared group by all
    ),
    intervals as (
        select
            operator, criterion, arm, ablation, neurons_per_layer,
            percentile_interval(list_dot_product(corrects, weights) / prompts, $confidence) as edges
        from measured join bootstrap('evaluation') using (operator)
        group by all
    )
select
    $subject as subject, operator, criterion, arm, ablation, neurons_per_layer, neurons, accuracy,
    edges[1] as ci_low, edges[2] as ci_high, logit_change, prompts, majority_accuracy
from measured
join intervals using (operator, criterion, arm, ablation, neurons_per_layer)
order by operator, criterion, arm, ablation, neurons_per_layer
