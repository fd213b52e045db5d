-- The prompts whose circuit is sought, each beside a counterfactual prompt with another answer.
--
-- subject                        VARCHAR    the model
-- pair                           INTEGER    number of the row, from 0
-- operator                       VARCHAR    of the clean prompt
-- split                          VARCHAR    discovery (to find components) or evaluation (to measure circuits); disjoint within a seed
-- seed                           INTEGER    of the draw; a prompt comes once in a seed's draw, and may come in several draws
-- op1                            SMALLINT   of the clean prompt, which the subject answers correctly
-- op2                            SMALLINT   of the clean prompt
-- result                         INTEGER    of the clean prompt
-- counterfactual_operator        VARCHAR    of the counterfactual prompt, drawn uniformly among the operators that have another answer
-- counterfactual_op1             SMALLINT   of the counterfactual prompt, drawn uniformly among the operator's cells with another answer
-- counterfactual_op2             SMALLINT   of the counterfactual prompt
-- counterfactual_result          INTEGER    of the counterfactual prompt, never equal to result; the subject may answer otherwise
-- tokens                         INTEGER[]  the clean prompt
-- answer_token                   INTEGER    token of result
-- positions                      STRUCT(op1 SMALLINT, "operator" SMALLINT, op2 SMALLINT, "last" SMALLINT)  where each role stands in tokens
-- counterfactual_tokens          INTEGER[]  the counterfactual prompt
-- counterfactual_answer_token    INTEGER    token of counterfactual_result
-- counterfactual_positions       STRUCT(op1 SMALLINT, "operator" SMALLINT, op2 SMALLINT, "last" SMALLINT)  the same in the counterfactual
with
    candidates as (  -- cells of equal answer stand in one block, so that a draw can step over it
        select operator, op1, op2, result, row_number() over (partition by operator order by result, op1, op2) - 1 as place
        from prompts where result is not null
    ),
    operators as (select operator, count(*) as cells from candidates group by operator),
    blocks as (select operator, result, min(place) as start, count(*) as size from candidates group by operator, result),
    ranked as (
        select operator, op1, op2, seed,
            row_number() over (
                partition by operator, seed order by lot('pair', seed, operator, op1, op2), op1, op2
            ) as rank
        from predictions, (select unnest($seeds)::integer as seed)
        where correct
        qualify rank <= 2 * $pairs_per_split
    ),
    chosen as (  -- odd and even ranks: where there are too few prompts, both splits get half of them
        select ranked.* exclude (rank), result,
            if(rank % 2 = 1, 'discovery', 'evaluation') as split, (rank + 1) // 2 as number,
            concat_ws(':', seed, operator, op1, op2) as key
        from ranked join candidates using (operator, op1, op2)
    ),
    with_operator as (
        select chosen.*, operators.operator as other, cells - coalesce(size, 0) as others, start, size
        from chosen
        join operators on $counterfactual = 'any_operator' or operators.operator = chosen.operator
        left join blocks on blocks.operator = operators.operator and blocks.result = chosen.result
        where others > 0
        qualify row_number() over (partition by key order by other) - 1
            = lot('operator', key) % count(*) over (partition by key)
    ),
    drawn as (
        select *, (lot('counterfactual', key) % others)::bigint as draw, if(draw >= start, draw + size, draw) as place
        from with_operator
    ),
    paired as (
        select row_number() over (order by drawn.operator, split, seed, number) - 1 as pair,
            drawn.* exclude (place), candidates.op1 as other1, candidates.op2 as other2, candidates.result as other_result
        from drawn join candidates on candidates.operator = other and candidates.place = drawn.place
    ),
    read as (  -- the tokens come last: only for what was drawn
        select *, {'op1': op1_position, 'operator': operator_position, 'op2': op2_position, 'last': last_position} as positions
        from prompts
    )
select
    $subject as subject, pair::integer as pair, paired.operator, split, seed, paired.op1, paired.op2, paired.result,
    other as counterfactual_operator, other1 as counterfactual_op1, other2 as counterfactual_op2, other_result as counterfactual_result,
    clean.tokens, clean.answer_token, clean.positions,
    changed.tokens as counterfactual_tokens, changed.answer_token as counterfactual_answer_token,
    changed.positions as counterfactual_positions
from paired
join read as clean on (clean.operator, clean.op1, clean.op2) = (paired.operator, paired.op1, paired.op2)
join read as changed on (changed.operator, changed.op1, changed.op2) = (other, other1, other2)
order by pair
