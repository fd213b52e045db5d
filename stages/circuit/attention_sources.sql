-- Which operand or operator each head of the circuit brings to the last position (App. B.2, Fig.
-- 14).
--
-- subject          VARCHAR   the model
-- operator         VARCHAR   add, subtract, multiply or divide
-- layer            SMALLINT  decoder layer, from 0
-- head             SMALLINT  attention head, from 0
-- source           VARCHAR   op1, operator or op2: where the last position looks most, among these
-- weight           FLOAT     mean attention weight from the last position to the source, 0 to 1
-- op1_weight       FLOAT     the same to the first operand
-- operator_weight  FLOAT     the same to the operator
-- op2_weight       FLOAT     the same to the second operand
select
    $subject as subject, operator, layer, head,
    first(key_position order by weight desc, key_position) as source,
    max(weight) as weight,
    max(weight) filter (where key_position = 'op1') as op1_weight,
    max(weight) filter (where key_position = 'operator') as operator_weight,
    max(weight) filter (where key_position = 'op2') as op2_weight
from attention_patterns
semi join circuit_heads using (operator, layer, head)
where query_position = 'last' and key_position in ('op1', 'operator', 'op2')
group by operator, layer, head
order by operator, layer, head
