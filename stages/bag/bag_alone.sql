-- How much of the answer the bag of heuristics carries alone, and how much the neurons without a
-- heuristic carry. NL is the answer's logit divided by the largest logit, both above their mean
-- over the vocabulary (Eq. 2). Only late neurons are ablated.
--
-- subject            VARCHAR  the model
-- operator           VARCHAR  add, subtract, multiply or divide
-- criterion          VARCHAR  criterion by which neurons have heuristics, as in heuristic_neurons:
--                             label, fdr or threshold; null for everything and nothing
-- kept               VARCHAR  late neurons that are kept: heuristic, rest, matched, matched_rest,
--                             random or random_rest (mean over all draws), everything or nothing,
--                             as in bag_interventions
-- ablation           VARCHAR  value that all other late neurons take at the last position: mean
--                             (pooled over operators with equal weight) or zero
-- neurons            INTEGER  number of late neurons that are kept; for matched, fewer than for
--                             heuristic if more than half of a layer has a heuristic
-- accuracy           DOUBLE   share of prompts answered correctly, 0 to 1; 1 with everything kept
-- ci_low             DOUBLE   lower end of the accuracy's bootstrap interval, over seeds and
--                             prompts, 0 to 1
-- ci_high            DOUBLE   upper end of the accuracy's bootstrap interval, 0 to 1
-- faithfulness       DOUBLE   (mean NL - mean NL of nothing) / (mean NL of everything - mean NL of
--                             nothing); 0 is nothing, 1 is everything
-- recovered          DOUBLE   share of the logit difference between the answer and the
--                             counterfactual prompt's answer that is kept: (mean difference - that
--                             of nothing) / (that of everything - that of nothing); null unless
--                             that of everything is clearly larger
-- recovered_low      DOUBLE   lower end of the bootstrap interval of recovered
-- recovered_high     DOUBLE   upper end of the bootstrap interval of recovered
-- prompts            BIGINT   number of evaluation prompts in these means
-- majority_accuracy  DOUBLE   accuracy of always predicting the most frequent answer of these
--                             prompts, 0 to 1
with
    interventions as (  -- bag_interventions has one row per patch
        select distinct intervention, operator, criterion, kept, replacement as ablation, neurons
        from bag_interventions
    ),
    answers as (
        select
            operator, criterion, kept, ablation, neurons, pair, answer_token,
            avg(correct::integer) as correct, avg(normal_logit(runs)) as nl,
            avg(answer_logit::double - counterfactual_logit) as difference
        from runs
        join interventions using (intervention)
        join (select pair, answer_token from pairs) using (pair)
        where experiment = 'bag'
        group by all
    ),
    ends as (
        select operator, ablation,
            avg(nl) filter (where kept = 'nothing') as nothing,
            avg(nl) filter (where kept = 'everything') as everything
        from answers group by all
    ),
    differences as (  -- the two ends of recovered
        select operator, ablation, pair,
            max(difference) filter (where kept = 'nothing') as without,
            max(difference) filter (where kept = 'everything') as whole
        from answers group by all
    ),
    measured as (
        select
            operator, criterion, kept, ablation, neurons, avg(correct) as accuracy, avg(nl) as nl,
            count(*) as prompts,
            majority_accuracy(answer_token) as majority_accuracy,
            list(correct::double order by pair) as corrects,
            list(difference - without order by pair) as gains,
            list(whole - without order by pair) as losses
        from answers join differences using (operator, ablation, pair)
        group by operator, criterion, kept, ablation, neurons
    ),
    intervals as (
        select
            operator, criterion, kept, ablation,
            percentile_interval(list_dot_product(corrects, weights) / prompts, $confidence)
                as edges,
            percentile_interval(list_dot_product(losses, weights), $confidence)[1] > 0 as loses,
            percentile_interval(
                list_dot_product(gains, weights) / nullif(list_dot_product(losses, weights), 0),
                $confidence
            ) as recovered_edges
        from measured join bootstrap('evaluation') using (operator)
        group by operator, criterion, kept, ablation
    )
select
    $subject as subject, operator, measured.criterion, kept, ablation, neurons, accuracy,
    edges[1] as ci_low, edges[2] as ci_high,
    faithfulness(nl, nothing, everything) as faithfulness,
    if(loses, list_sum(gains) / list_sum(losses), null) as recovered,
    if(loses, recovered_edges[1], null) as recovered_low,
    if(loses, recovered_edges[2], null) as recovered_high, prompts, majority_accuracy
from measured
join ends using (operator, ablation)
join intervals using (operator, kept, ablation)
where measured.criterion is not distinct from intervals.criterion
order by operator, measured.criterion nulls first, kept, ablation
