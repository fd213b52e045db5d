-- Whether ablating a heuristic's neurons hurts the heuristic's own prompts alone: a test over all
-- heuristics of an operator, each compared with its control (Sec. 4.2, Fig. 7). Heuristics without
-- associated prompts, other prompts or a control are left out.
--
-- The test takes account of heuristics that share neurons. Under the null hypothesis, ablating a
-- heuristic's neurons dissociates no better than ablating others. Then a heuristic's difference is
-- a mean of contributions of its neurons, each as likely above zero as below. Heuristics that share
-- neurons have correlated differences. If a neuron contributes alike to both heuristics, the
-- correlation is the number of shared neurons / sqrt(product of both heuristics' numbers of
-- neurons).
--
-- The statistic is the sum of differences / sqrt(sum of their squares). A draw gives every neuron a
-- random number, gives every heuristic the sum of its neurons' numbers / sqrt(number of its
-- neurons), and takes the same statistic. Without shared neurons, this is a test of independent
-- differences. It is conservative if a neuron contributes differently to different heuristics.
--
-- subject             VARCHAR  the model
-- operator            VARCHAR  add, subtract, multiply or divide
-- criterion           VARCHAR  criterion by which neurons have heuristics, as in heuristic_neurons:
--                              label, fdr or threshold
-- ablation            VARCHAR  value that ablated neurons take: zero or mean (over all prompts,
--                              pooled over operators)
-- measure             VARCHAR  what is compared: accuracy (share of prompts lost) or logit (the
--                              answer's, above the mean logit)
-- heuristics          BIGINT   number of ablated heuristics that are compared
-- effective           DOUBLE   number of independent heuristics that would make the mean difference
--                              as precise: heuristics ** 2 / sum of the correlations of all pairs
--                              by shared neurons; 1 to heuristics
-- neurons             DOUBLE   mean number of neurons that are ablated together
-- associated          DOUBLE   mean of the measure on associated prompts: accuracy after the
--                              ablation, 0 to 1, or change of the logit
-- other               DOUBLE   mean of the measure on other prompts: accuracy after the ablation, 0
--                              to 1, or change of the logit
-- control_associated  DOUBLE   mean of the measure on associated prompts when the control's neurons
--                              are ablated
-- control_other       DOUBLE   mean of the measure on other prompts when the control's neurons are
--                              ablated
-- difference          DOUBLE   mean over heuristics of the dissociation - the control's
--                              dissociation; in accuracy, -2 to 2, or in logits
-- deviation           DOUBLE   standard deviation of the difference over heuristics; null for a
--                              single heuristic
-- standard_error      DOUBLE   standard error of the difference, which accounts for the
--                              correlations; null with fewer than 2 effective heuristics
-- positive            DOUBLE   share of heuristics whose neurons dissociate better than the
--                              control's, 0 to 1
-- p_value             DOUBLE   share of draws with a statistic at least as large, the measured one
--                              included: at least 1 / ($test_draws + 1); null with fewer than 2
--                              effective heuristics, which cannot be tested
with
    measures as (
        select
            operator, criterion, heuristic, ablation, arm, neurons,
            unnest(['accuracy', 'logit']) as measure,
            unnest([accuracy_associated, logit_change_associated]) as associated,
            unnest([accuracy_other, logit_change_other]) as other,
            unnest([dissociation, logit_dissociation]) as dissociation
        from knockouts_by_heuristic
    ),
    paired as (
        select own.*, control.associated as control_associated, control.other as control_other,
            own.dissociation - control.dissociation as difference
        from measures as own
        join measures as control using (operator, criterion, heuristic, ablation, measure)
        where own.arm = 'heuristic' and control.arm = 'control' and own.dissociation
            - control.dissociation is not null
    ),
    compared as (
        select
            operator, criterion, ablation, measure, count(*) as heuristics,
            avg(neurons) as neurons,
            avg(associated) as associated, avg(other) as other,
            avg(control_associated) as control_associated,
            avg(control_other) as control_other, avg(difference) as difference,
            stddev_samp(difference) as deviation,
            stddev_pop(difference) as spread, avg((difference > 0)::integer) as positive,
            sum(difference order by heuristic) as total,
            sum(difference ** 2 order by heuristic) as squares
        from paired group by all
    ),
    members as (  -- weights give the sum over a heuristic's neurons the variance of a single neuron
        select *, 1 / sqrt(count(*) over (partition by operator, criterion, heuristic)) as weight
        from (select distinct operator, criterion, heuristic, layer, neuron from heuristic_neurons)
        semi join paired using (operator, criterion, heuristic)
    ),
    shared as (
        select operator, criterion, ablation, measure, layer, neuron,
            sum(weight order by heuristic) as weight
        from paired join members using (operator, criterion, heuristic) group by all
    ),
    sharing as (  -- the sum of all correlations equals the sum of squares over neurons
        select operator, criterion, ablation, measure,
            heuristics ** 2 / sum(weight ** 2 order by layer, neuron) as effective
        from shared join compared using (operator, criterion, ablation, measure)
        group by operator, criterion, ablation, measure, heuristics
    ),
    numbers as (
        select operator, layer, neuron, draw,
            lot($knockout_seed, 'test', draw, operator, layer, neuron) / 2.0 ** 64 - 0.5 as number
        from
            (select distinct operator, layer, neuron from members),
            (select unnest(range($test_draws)) as draw)
    ),
    drawn as (
        select operator, criterion, heuristic, draw, sum(weight * number) as difference
        from members join numbers using (operator, layer, neuron) group by all
    ),
    draws as (
        select operator, criterion, ablation, measure, draw,
            sum(drawn.difference) as total, sum(drawn.difference ** 2) as squares
        from paired join drawn using (operator, criterion, heuristic) group by all
    ),
    tested as (
        select operator, criterion, ablation, measure,
            count(*) filter (
                draws.total * sqrt(compared.squares) >= compared.total * sqrt(draws.squares)
            ) as beaten
        from compared join draws using (operator, criterion, ablation, measure) group by all
    )
select
    $subject as subject, operator, criterion, ablation, measure, heuristics, effective, neurons,
    associated, other, control_associated, control_other, difference, deviation,
    if(effective >= 2, spread / sqrt(effective - 1), null) as standard_error, positive,
    if(effective >= 2, (1 + beaten) / (1 + $test_draws), null) as p_value
from compared
join sharing using (operator, criterion, ablation, measure)
join tested using (operator, criterion, ablation, measure)
order by operator, criterion, ablation, measure
