-- How often a model's prediction is correct on the cells of the grid.
--
-- subject            VARCHAR  the model
-- operator           VARCHAR  add, subtract, multiply or divide
-- split              VARCHAR  train or held-out: whether the model was trained on these cells; all,
--                             for a model that was not trained here
-- accuracy           DOUBLE   share of cells whose most likely next token is the answer, 0 to 1
-- cells              BIGINT   number of cells of the operator and split
-- majority_accuracy  DOUBLE   accuracy of always predicting the most frequent answer token of these
--                             cells, 0 to 1
select
    predictions.subject, operator, if(trained_here, split, 'all') as split,
    avg(correct::integer) as accuracy, count(*) as cells,
    majority_accuracy(answer_token) as majority_accuracy
from predictions
join origins using (subject)
join cells using (operator, op1, op2)
join (select operator, op1, op2, answer_token from prompts) using (operator, op1, op2)
group by all
order by subject, operator, split
