-- Quotients that the model gets wrong
-- Share of wrong answers by the first operand's and the divisor's size. The model errs
-- where the quotient is large.
select op2 // 10 * 10 as divisor_from, op1 // 20 * 20 as op1_from, avg((not correct)::int) as wrong
from predictions
where subject = $subject and operator = 'divide' and op2 < 100
group by all
order by op1_from, divisor_from
