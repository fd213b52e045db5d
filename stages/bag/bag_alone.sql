-- How much of the answer the bag of heuristics carries alone, and how much the neurons without a heuristic do.
-- NL is the answer's logit / the largest one, both above their mean over the vocabulary (Eq. 2), here with late neurons ablated alone.
--
-- subject            VARCHAR  the model
-- operator           VARCHAR  add, subtract, multiply or divide
-- membership         VARCHAR  label, called or scored, as in heuristic_neurons; null for everything
--                             and nothing
-- kept               VARCHAR  heuristic, rest, random (mean of all draws), everything or nothing,
--                             as in bag_interventions
-- ablation           VARCHAR  mean (pooled over operators with equal weight) or zero: what other
--                             late neurons become at the last position
-- neurons            INTEGER  late neurons that are kept
-- accuracy           DOUBLE   share of prompts answered correctly, 0 to 1; all are with everything
--                             kept
-- ci_low             DOUBLE   lower end of its bootstrap interval, over seeds and prompts
-- ci_high            DOUBLE   upper end
-- faithfulness       DOUBLE   (mean NL - mean NL of nothing) / (mean NL of everything - mean NL of
--                             nothing)
-- prompts            BIGINT   prompts in these means
-- majority_accuracy  DOUBLE   accuracy of always predicting the most frequent answer of these
--                             prompts, 0 to 1
with
    interventions as (  -- one row per patch there
        select distinct intervention, operator, membership, kept, replacement as ablation, neurons from bag_interventions
    ),
    answers as (
        select
            operator, membership, kept, ablation, neurons, pair, answer_token,
            avg(correct::integer) as correct, avg(normal_logit(runs)) as nl
        from runs
        join interventions using (intervention)
        join (select pair, answer_token from pairs) using (pair)
        where experiment = 'bag'
        group by all
    ),
    ends as (
        select operator, ablation,
            avg(nl) filter (where kept = 'nothing') as nothing, avg(nl) filter (where kept = 'everything') as everything
        from answers group by all
    ),
    measured as (
        select
            operator, membership, kept, ablation, neurons, avg(correct) as accuracy, avg(nl) as nl, count(*) as prompts,
            majority_accuracy(answer_token) as majority_accuracy,
            list(correct::double order by pair) as corrects
        from answers group by all
    ),
    intervals as (
        select
            operator, membership, kept, ablation,
            percentile_interval(list_dot_product(corrects, weights) / prompts, $confidence) as edges
        from measured join bootstrap('evaluation') using (operator)
        group by all
    )
select
    $subject as subject, operator, measured.membership, kept, ablation, neurons, accuracy, edges[1] as ci_low, edges[2] as ci_high,
    faithfulness(nl, nothing, everything) as faithfulness, prompts, majority_accuracy
from measured
join ends using (operator, ablation)
join intervals using (operator, kept, ablation)
where measured.membership is not distinct from intervals.membership
order by operator, measured.membership nulls first, kept, ablation
