-- Kinds of heuristics
-- Number of neurons by the kind of their best label, and by operator. Most labels are ranges of the
-- result or of an operand. On addition and subtraction, many labels are remainders (modulo).
select kind, count(*) as neurons, operator
from labels
where subject = $subject and rank = 1
group by kind, operator
order by kind, operator
