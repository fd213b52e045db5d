-- How many pairs were planned and drawn for each operator, split and seed, and why any are missing.
--
-- subject   VARCHAR  the model
-- operator  VARCHAR  operator of the prompts that the model was given: add, subtract, multiply or
--                    divide
-- split     VARCHAR  discovery or evaluation
-- seed      INTEGER  seed of the draw
-- wanted    INTEGER  number of planned pairs
-- found     INTEGER  number of pairs that were drawn
-- missing   INTEGER  wanted - found
-- problem   VARCHAR  why pairs are missing; null if none is
with
    operators as (select operator, count(result) > 0 as answerable from prompts group by operator),
    answered as (
        select operator, split_of(operator, op1, op2) as split, count(*) as correct
        from predictions where correct group by all
    ),
    wanted as (
        select operators.*, coalesce(correct, 0) as correct, split, seed
        from operators cross join (values ('discovery'), ('evaluation')) as splits(split)
        left join answered using (operator, split)
        cross join (select unnest($seeds)::integer as seed)
    ),
    found as (select operator, split, seed, count(*) as found from pairs
        group by operator, split, seed),
    counted as (select wanted.*, coalesce(found, 0) as found from wanted
        left join found using (operator, split, seed))
select
    $subject as subject, operator, split, seed,
    $pairs_per_split::integer as wanted, found::integer as found,
    ($pairs_per_split - found)::integer as missing,
    case
        when missing = 0 then null
        when not answerable then 'no prompt has a one-token answer'
        when correct = 0 then 'the model answers no prompt of this split correctly'
        when found = 0 then 'no counterfactual with another answer'
        else 'the model answers only ' || correct || if(correct = 1, ' prompt', ' prompts')
            || ' of this split correctly'
    end as problem
from counted
order by operator, split, seed
