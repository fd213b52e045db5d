-- Quotients that the model gets wrong
-- Share of wrong answers by the size of the first operand and of the divisor. At quotients of 20 to
-- 40, a third of the answers are wrong. Below 14 and above 70, nearly all answers are right.
select op2 // 10 * 10 as divisor_from, op1 // 20 * 20 as op1_from, avg((not correct)::int) as wrong
from predictions
where subject = $subject and operator = 'divide' and op2 < 100
group by all
order by op1_from, divisor_from
