-- What silencing all neurons of a heuristic does to the prompts it is about, and to those it is not about (Sec. 4, Fig. 7).
-- A prompt is associated with a heuristic if its cell satisfies it; all other prompts of the operator are not. Every prompt is one the
-- subject answers correctly; one that several draws of pairs have counts in each.
--
-- subject                     VARCHAR  the model
-- operator                    VARCHAR  add, subtract, multiply or divide
-- heuristic                   VARCHAR  whose neurons are silenced
-- ablation                    VARCHAR  zero or mean: what their activations become at the last position
-- arm                         VARCHAR  heuristic, or control: as many random labelled neurons without it, mean of all draws
-- neurons                     INTEGER  neurons that are silenced together
-- prompts_associated          INTEGER  evaluation prompts of the operator that satisfy the heuristic
-- prompts_other               INTEGER  evaluation prompts of the operator that do not
-- accuracy_associated         DOUBLE   share of associated prompts still answered correctly, 0 to 1; null where there is none
-- accuracy_other              DOUBLE   share of the others still answered correctly
-- accuracy_associated_before  DOUBLE   share of associated prompts answered correctly with nothing silenced
-- accuracy_other_before       DOUBLE   of the others
-- logit_change_associated     DOUBLE   mean change of the answer's logit above the mean logit, after - before, on associated prompts
-- logit_change_other          DOUBLE   on the others
with
    interventions as (  -- one row per patch there
        select distinct intervention, operator, heuristic, replacement as ablation, arm, neurons from knockout_interventions
    ),
    answers as (
        select intervention, pair, correct::integer as correct, answer_logit::double - mean_logit as logit
        from runs where experiment = 'knockout'
    ),
    clean as (
        select pair, correct as correct_before, logit as logit_before
        from answers join interventions using (intervention) where arm = 'none'
    ),
    compared as (
        select
            interventions.*, associated.pair is not null as associated, correct, correct_before, logit - logit_before as logit_change
        from answers
        join interventions using (intervention)
        join clean using (pair)
        left join prompt_associations as associated
            on (associated.operator, associated.heuristic, associated.pair)
                = (interventions.operator, interventions.heuristic, answers.pair)
        where arm <> 'none'
    ),
    measured as (
        select
            intervention, operator, heuristic, ablation, arm, neurons,
            count(*) filter (associated) as prompts_associated, count(*) filter (not associated) as prompts_other,
            avg(correct) filter (associated) as accuracy_associated, avg(correct) filter (not associated) as accuracy_other,
            avg(correct_before) filter (associated) as accuracy_associated_before,
            avg(correct_before) filter (not associated) as accuracy_other_before,
            avg(logit_change) filter (associated) as logit_change_associated,
            avg(logit_change) filter (not associated) as logit_change_other
        from compared group by all
    )
select
    $subject as subject, operator, heuristic, ablation, arm, neurons,
    any_value(prompts_associated)::integer as prompts_associated, any_value(prompts_other)::integer as prompts_other,
    avg(accuracy_associated) as accuracy_associated, avg(accuracy_other) as accuracy_other,
    avg(accuracy_associated_before) as accuracy_associated_before, avg(accuracy_other_before) as accuracy_other_before,
    avg(logit_change_associated) as logit_change_associated, avg(logit_change_other) as logit_change_other
from measured
group by all
order by operator, heuristic, ablation, arm
