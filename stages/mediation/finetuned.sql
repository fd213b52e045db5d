-- What fine-tuning changes: accuracy, and how much late MLPs at the last position matter, before and after (causal mediation).
--
-- subject             VARCHAR  the fine-tuned model
-- before              VARCHAR  the subject it was before
-- tuned_on            VARCHAR  task that it was fine-tuned on
-- task                VARCHAR  task of the pairs
-- condition           VARCHAR  what differs within a pair
-- correct_before      DOUBLE   share of clean prompts answered correctly, 0 to 1
-- correct             DOUBLE   the same after fine-tuning
-- importance_before   DOUBLE   as in relative_importance, of all pairs
-- ci_low_before       DOUBLE   lower end of its interval
-- ci_high_before      DOUBLE   upper end
-- importance          DOUBLE   the same after fine-tuning
-- ci_low              DOUBLE   lower end of its interval
-- ci_high             DOUBLE   upper end
-- log_effects_before  DOUBLE   sum of all MLPs' log effects
-- log_effects         DOUBLE   the same after fine-tuning
-- pairs               BIGINT   pairs, of both alike unless their tokenizers differ
with
    everyone as (
        select a.*, answered.pairs / a.pairs as correct
        from relative_importance as a
        join relative_importance as answered using (subject, task, condition, operator)
        where a.which = 'all' and answered.which = 'answered' and operator = 'all'
    )
select
    $subject as subject, $before as before, $task as tuned_on, task, condition, old.correct as correct_before, new.correct as correct,
    old.importance as importance_before, old.ci_low as ci_low_before, old.ci_high as ci_high_before,
    new.importance, new.ci_low, new.ci_high, old.log_effects as log_effects_before, new.log_effects, new.pairs
from everyone as new
join everyone as old using (task, condition)
where new.subject = $subject and old.subject = $before
order by task, condition
