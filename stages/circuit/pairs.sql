-- The prompts on which the circuit is searched for, each with a counterfactual prompt of another
-- answer. Both prompts of a pair have the same length and each role at the same position. Answers
-- differ if the tokens to be predicted do. If numbers have several tokens, positions of operands
-- are those of the last token, and both structs also have op1_first and op2_first.
--
-- subject                      VARCHAR  the model
-- pair                         INTEGER  number of the pair, from 0
-- operator                     VARCHAR  operator of the clean prompt: add, subtract, multiply or
--                                divide
-- split                        VARCHAR  discovery (to find components) or evaluation (to measure
--                                circuits); a hash of the prompt's operator and operands
--                                that is the same in every seed, so that no prompt is in
--                                both
-- seed                         INTEGER  seed of the draw; a seed draws a prompt at most once, and
--                                several seeds may draw the same prompt
-- op1                          INTEGER  first operand of the clean prompt, which the model answers
--                                correctly
-- op2                          INTEGER  second operand of the clean prompt
-- result                       INTEGER  answer of the clean prompt
-- counterfactual_operator      VARCHAR  operator of the counterfactual prompt, drawn uniformly
--                                among the operators that have another answer
-- counterfactual_op1           INTEGER  first operand of the counterfactual prompt, which is drawn
--                                uniformly among the operator's cells with another answer
-- counterfactual_op2           INTEGER  second operand of the counterfactual prompt
-- counterfactual_result        INTEGER  correct answer of the counterfactual prompt, never equal to
--                                result; the model may predict another number
-- tokens                       INTEGER[]  token ids of the clean prompt
-- answer_token                 INTEGER  token id of the clean prompt's answer
-- positions                    STRUCT(op1 SMALLINT, "operator" SMALLINT, op2 SMALLINT, "last" SMALLINT)  position of each role in
--                                tokens, from 0
-- counterfactual_tokens        INTEGER[]  token ids of the counterfactual prompt
-- counterfactual_answer_token  INTEGER  token id of the counterfactual prompt's answer
-- counterfactual_positions     STRUCT(op1 SMALLINT, "operator" SMALLINT, op2 SMALLINT, "last" SMALLINT)  position of each role in
--                                counterfactual_tokens, from 0
with
    candidates as (  -- cells of equal answer are one block, which a draw can step over
        select operator, op1, op2, result, answer_token,
            concat_ws(':', len(tokens), *columns('.*_position')) as form,
            row_number() over (partition by operator, form order by answer_token, op1, op2)
                - 1 as place
        from prompts where result is not null
    ),
    operators as (select operator, form, count(*) as cells from candidates group by operator, form),
    blocks as (select operator, form, answer_token, min(place) as start, count(*) as size
        from candidates group by all),
    ranked as (
        select operator, op1, op2, split_of(operator, op1, op2) as split, seed,
            row_number() over (
                partition by operator, split, seed
                order by lot('pair', seed, operator, op1, op2), op1, op2
            ) as number
        from predictions, (select unnest($seeds)::integer as seed)
        where correct
        qualify number <= $pairs_per_split
    ),
    sampled as (
        select ranked.*, result, answer_token, form, concat_ws(':', seed, operator, op1, op2) as key
        from ranked join candidates using (operator, op1, op2)
    ),
    with_operator as (
        select sampled.*, operators.operator as other, cells - coalesce(size, 0) as others, start,
            size
        from sampled
        join operators on operators.form = sampled.form
            and ($counterfactual = 'any_operator' or operators.operator = sampled.operator)
        left join blocks
            on (blocks.operator, blocks.form, blocks.answer_token)
                = (operators.operator, operators.form, sampled.answer_token)
        where others > 0
        qualify row_number() over (partition by key order by other) - 1
            = lot('operator', key) % count(*) over (partition by key)
    ),
    drawn as (
        select *, (lot('counterfactual', key) % others)::bigint as draw,
            if(draw >= start, draw + size, draw) as place
        from with_operator
    ),
    paired as (
        select row_number() over (order by drawn.operator, split, seed, number) - 1 as pair,
            drawn.* exclude (place), candidates.op1 as other1, candidates.op2 as other2,
            candidates.result as other_result
        from drawn join candidates
            on (candidates.operator, candidates.form, candidates.place)
                = (other, drawn.form, drawn.place)
    ),
    read as (  -- tokens are joined last, for the drawn cells alone
        select *, (
                select role from (
                    select columns('(.*)_position') as '\1' from (select prompts.*)
                ) as role
            ) as positions
        from prompts
    )
select
    $subject as subject, pair::integer as pair, paired.operator, split, seed, paired.op1,
    paired.op2, paired.result,
    other as counterfactual_operator, other1 as counterfactual_op1, other2 as counterfactual_op2,
    other_result as counterfactual_result,
    clean.tokens, clean.answer_token, clean.positions,
    changed.tokens as counterfactual_tokens, changed.answer_token as counterfactual_answer_token,
    changed.positions as counterfactual_positions
from paired
join read as clean
    on (clean.operator, clean.op1, clean.op2) = (paired.operator, paired.op1, paired.op2)
join read as changed on (changed.operator, changed.op1, changed.op2) = (other, other1, other2)
order by pair
