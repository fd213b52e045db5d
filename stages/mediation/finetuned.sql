-- What fine-tuning changes: accuracy, and the importance of late MLPs at the last position, before
-- and after.
--
-- subject             VARCHAR  the fine-tuned model
-- before              VARCHAR  the model before fine-tuning
-- tuned_on            VARCHAR  task that the model was fine-tuned on
-- task                VARCHAR  task of the pairs
-- condition           VARCHAR  what differs within a pair
-- correct_before      DOUBLE   share of clean prompts that the model answers correctly before
--                              fine-tuning, 0 to 1
-- correct             DOUBLE   share of clean prompts that the model answers correctly after
--                              fine-tuning, 0 to 1
-- importance_before   DOUBLE   relative importance before fine-tuning, of all pairs, as in
--                              relative_importance
-- ci_low_before       DOUBLE   lower end of the interval of importance_before
-- ci_high_before      DOUBLE   upper end of the interval of importance_before
-- importance          DOUBLE   relative importance after fine-tuning, of all pairs
-- ci_low              DOUBLE   lower end of the interval of importance
-- ci_high             DOUBLE   upper end of the interval of importance
-- log_effects_before  DOUBLE   sum of all MLPs' log effects before fine-tuning
-- log_effects         DOUBLE   sum of all MLPs' log effects after fine-tuning
-- pairs               BIGINT   pairs after fine-tuning; equal before, unless the tokenizers differ
with
    measured as (
        select a.*, answered.pairs / a.pairs as correct
        from relative_importance as a
        join relative_importance as answered using (subject, task, condition, operator)
        where a.which = 'all' and answered.which = 'answered' and operator = 'all'
    )
select
    $subject as subject,
    $before as before,
    $task as tuned_on,
    task, condition,
    old.correct as correct_before,
    new.correct as correct,
    old.importance as importance_before,
    old.ci_low as ci_low_before,
    old.ci_high as ci_high_before,
    new.importance, new.ci_low, new.ci_high,
    old.log_effects as log_effects_before,
    new.log_effects, new.pairs
from measured as new
join measured as old using (task, condition)
where new.subject = $subject and old.subject = $before
order by task, condition
