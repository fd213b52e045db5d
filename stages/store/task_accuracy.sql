-- How often a subject answers the prompts of each task outside the grid correctly, of those whose answer is one token of it: of the others
-- no one can say. Where there is none, its accuracy is not 0 but unknown.
--
-- subject            VARCHAR  the model
-- task               VARCHAR  arithmetic, number_words, three_operands, retrieval or factual
-- operator           VARCHAR  of arithmetic and number_words; all for tasks without one operator
-- split              VARCHAR  train or held-out: whether the model may have been trained on these
--                             prompts; all, for a model that was not trained here (its prompts are
--                             in real_tasks)
-- accuracy           DOUBLE   share of prompts whose most likely next token is the answer, 0 to 1;
--                             null of none
-- prompts            BIGINT   how many prompts that is a share of
-- majority_accuracy  DOUBLE   accuracy of always predicting the most frequent answer of these
--                             prompts, 0 to 1; null of none, and for a model that is asked for one
--                             of several tokens of an answer
with
    answered as (
        select
            subject, task,
            if(task in ('arithmetic', 'number_words'), operator, 'all') as operator,
            split, correct, answer_logit is not null as known, answer,
            -- the answer's text does not say which token is asked for
            bool_or(correct and trim(predicted) <> answer) over (partition by subject) as partial
        from task_predictions
        join (from tasks union all by name from real_tasks) using (task, prompt_number)
    )
select
    subject, task, operator, split,
    avg(correct::integer) filter (where known) as accuracy,
    count(*) filter (where known) as prompts,
    majority_accuracy(if(known and not partial, answer, null)) as majority_accuracy
from answered
group by all
order by subject, task, operator, split
