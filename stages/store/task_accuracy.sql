-- How often a model's prediction is correct on the prompts of each task outside the grid. Only
-- prompts with an answer_token in task_predictions count. If a task has none, its accuracy is null.
--
-- subject            VARCHAR  the model
-- task               VARCHAR  arithmetic, number_words, three_operands, retrieval or factual
-- operator           VARCHAR  operator of the tasks arithmetic and number_words; all, for tasks
--                             without an operator
-- split              VARCHAR  train or held-out: whether the model may have been trained on these
--                             prompts; all, for a model that was not trained here (its prompts are
--                             in real_tasks)
-- accuracy           DOUBLE   share of prompts whose most likely next token is the answer, 0 to 1;
--                             null if no prompt counts
-- prompts            BIGINT   number of prompts that count
-- majority_accuracy  DOUBLE   accuracy of always predicting the most frequent answer token of these
--                             prompts, 0 to 1; null if no prompt counts
with
    answered as (
        select
            subject, task,
            if(task in ('arithmetic', 'number_words'), operator, 'all') as operator,
            split, correct, answer_token
        from task_predictions
        join (from tasks union all by name from real_tasks) using (task, prompt_number)
    )
select
    subject, task, operator, split,
    avg(correct::integer) filter (where answer_token is not null) as accuracy,
    count(answer_token) as prompts,
    majority_accuracy(answer_token) as majority_accuracy
from answered
group by all
order by subject, task, operator, split
