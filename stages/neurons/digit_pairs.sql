-- The discovery prompts of all digits in one table, on which digit_interventions patches neurons.
-- The table has no rows if every neuron is patched already, for every digit.
--
-- subject                      VARCHAR    the model that predicts the first digit
-- pair                         INTEGER    number of the pair in this table, from 0
-- digit                        INTEGER    digit of the answer that is predicted, from 1
-- half                         INTEGER    half of the prompts, 0 or 1, as in digit_neurons
-- operator                     VARCHAR    operator of the clean prompt: add, subtract, multiply or
--                                         divide
-- split                        VARCHAR    split of the clean prompt, always discovery
-- tokens                       INTEGER[]  token ids of the clean prompt
-- answer_token                 INTEGER    token id of the clean prompt's digit
-- positions                    STRUCT(op1 SMALLINT, "operator" SMALLINT, op2 SMALLINT, "last" SMALLINT)  position of each role in
--                                         tokens, from 0, as in pairs
-- counterfactual_tokens        INTEGER[]  token ids of the counterfactual prompt
-- counterfactual_answer_token  INTEGER    token id of the counterfactual prompt's digit
-- counterfactual_positions     STRUCT(op1 SMALLINT, "operator" SMALLINT, op2 SMALLINT, "last" SMALLINT)  position of each role in
--                                         counterfactual_tokens, from 0
select
    $first as subject,
    (row_number() over (order by digit, pairs.pair) - 1)::integer as pair,
    digit, half, pairs.operator, split, tokens, answer_token, positions,
    counterfactual_tokens, counterfactual_answer_token, counterfactual_positions
from pairs join digit_prompts($first, $second, $third) as prompts using (subject, pair)
where pairs.operator in (select operator from digit_neurons where method = 'attribution')
order by pair
