-- Late MLPs in causal mediation
-- Share of the late MLPs at the last position in the effects of all MLPs. It is large where the
-- result varies between the two prompts, and small where both have the same result.
select task, importance, condition
from relative_importance
where subject = $subject and operator = 'all' and which = 'all' and importance is not null
order by task, condition
