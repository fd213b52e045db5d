-- Late MLPs in causal mediation
-- The late MLPs' share of the effects of all MLPs, at the last position. The share is larger where
-- the two prompts differ in the result (result_varies) than where they share it (result_fixed).
select task, importance, condition
from relative_importance
where subject = $subject and operator = 'all' and which = 'all' and importance is not null
order by task, condition
