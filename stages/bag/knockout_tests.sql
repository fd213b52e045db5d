-- Do heuristics' neurons do their own job alone? All knock-outs of an operator together, each beside its control (Sec. 4.2, Fig. 7).
-- The test turns the sign of each heuristic's difference at random: if silencing its neurons dissociates no better than silencing others,
-- either sign is as likely. Heuristics without associated prompts, other prompts or control have no say. Signs are turned one by one:
-- heuristics that share neurons and prompts, such as ranges that overlap, are not independent, and p-values are smaller than they should be.
--
-- subject             VARCHAR  the model
-- operator            VARCHAR  add, subtract, multiply or divide
-- membership          VARCHAR  label, called or scored, as in heuristic_neurons
-- ablation            VARCHAR  zero or mean
-- measure             VARCHAR  accuracy (share lost), or logit (of the answer, above the mean logit)
-- heuristics          BIGINT   knock-outs that are compared
-- neurons             DOUBLE   mean number of neurons that are silenced together
-- associated          DOUBLE   mean of the measure on associated prompts: accuracy after the knock-out, or change of the logit
-- other               DOUBLE   on the others
-- control_associated  DOUBLE   on associated prompts, with the control's neurons silenced
-- control_other       DOUBLE   on the others, with the control's neurons silenced
-- difference          DOUBLE   mean over heuristics of the dissociation - the control's
-- deviation           DOUBLE   its standard deviation over heuristics; null of a single one
-- positive            DOUBLE   share of heuristics whose neurons dissociate better than the control's
-- p_value             DOUBLE   share of random signs that give so large a difference, these included: at least 1 / ($flips + 1)
with
    measures as (
        select
            operator, membership, heuristic, ablation, arm, neurons,
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
        join measures as control using (operator, membership, heuristic, ablation, measure)
        where own.arm = 'heuristic' and control.arm = 'control' and own.dissociation - control.dissociation is not null
    ),
    compared as (
        select
            operator, membership, ablation, measure, count(*) as heuristics, avg(neurons) as neurons,
            avg(associated) as associated, avg(other) as other, avg(control_associated) as control_associated,
            avg(control_other) as control_other, avg(difference) as difference, stddev_samp(difference) as deviation,
            avg((difference > 0)::integer) as positive, list(difference order by heuristic) as differences
        from paired group by all
    ),
    signs as (
        select flip,
            list(2 * (lot($knockout_seed, 'flip', flip, place) % 2)::double - 1 order by place) as signs
        from (select unnest(range($flips)) as flip), (select unnest(range((select max(heuristics) from compared))) as place)
        group by flip
    ),
    tested as (
        select operator, membership, ablation, measure,
            count(*) filter (list_dot_product(differences, signs[:heuristics]) >= list_sum(differences) - 1e-9) as beaten
        from compared, signs group by all
    )
select
    $subject as subject, operator, membership, ablation, measure, heuristics, neurons, associated, other, control_associated, control_other,
    difference, deviation, positive, (1 + beaten) / (1 + $flips) as p_value
from compared
join tested using (operator, membership, ablation, measure)
order by operator, membership, ablation, measure
