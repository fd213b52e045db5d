-- Which operand, or the operator, each head of the circuit attends to most from the last position
-- (App. B.2, Fig. 14).
--
-- subject          VARCHAR   the model
-- operator         VARCHAR   add, subtract, multiply or divide
-- layer            SMALLINT  decoder layer, from 0
-- head             SMALLINT  attention head of the layer, from 0
-- source           VARCHAR   the position with the largest weight among op1, operator and op2
-- weight           FLOAT     mean attention weight from the last position to the source, 0 to 1
-- op1_weight       FLOAT     mean attention weight from the last position to the first operand, 0
--                            to 1
-- operator_weight  FLOAT     mean attention weight from the last position to the operator, 0 to 1
-- op2_weight       FLOAT     mean attention weight from the last position to the second operand, 0
--                            to 1
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
