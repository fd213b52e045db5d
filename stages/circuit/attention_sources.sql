-- Which operand, or the operator, each head of the circuit attends to most from the last position
-- (App. B.2, Fig. 14).
--
-- subject          VARCHAR   the model
-- operator         VARCHAR   add, subtract, multiply or divide
-- layer            SMALLINT  decoder layer, from 0
-- head             SMALLINT  attention head of the layer, from 0
-- source           VARCHAR   the one with the largest weight: op1, operator or op2
-- tokens           BIGINT    largest number of tokens of the source in a prompt
-- weight           FLOAT     mean attention weight from the last position to the source, 0 to 1
-- op1_weight       FLOAT     mean attention weight from the last position to the first operand,
--                            all of its tokens, 0 to 1
-- operator_weight  FLOAT     mean attention weight from the last position to the operator, 0 to 1
-- op2_weight       FLOAT     mean attention weight from the last position to the second operand,
--                            all of its tokens, 0 to 1
with
    sources as (
        -- a token of an operand before its last is called `op1, last but 1`
        select operator, layer, head, split_part(key_position, ',', 1) as source,
            -- without a token after it, op2's last token is called `last`
            1 + coalesce(
                max(try_cast(regexp_extract(key_position, 'last but (\d+)', 1) as bigint)), 0
            ) as tokens,
            sum(weight)::float as weight
        from attention_patterns
        semi join circuit_heads using (operator, layer, head)
        where query_position = 'last' and source in ('op1', 'operator', 'op2')
        group by all
    )
select
    $subject as subject, operator, layer, head,
    first(source order by weight desc, source) as source,
    first(tokens order by weight desc, source) as tokens,
    max(weight) as weight,
    max(weight) filter (where source = 'op1') as op1_weight,
    max(weight) filter (where source = 'operator') as operator_weight,
    max(weight) filter (where source = 'op2') as op2_weight
from sources
group by operator, layer, head
order by operator, layer, head
