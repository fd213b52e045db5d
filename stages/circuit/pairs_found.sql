-- How many pairs were wanted and found, by operator, split and seed, and why any are missing.
--
-- subject   VARCHAR  the model
-- operator  VARCHAR  every operator the subject was asked about
-- split     VARCHAR  discovery or evaluation
-- seed      INTEGER  of the draw
-- wanted    INTEGER  pairs asked for
-- found     INTEGER  pairs there are
-- missing   INTEGER  wanted - found
-- problem   VARCHAR  why pairs are missing; null where none is
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
    found as (select operator, split, seed, count(*) as found from pairs group by operator, split, seed),
    counted as (select wanted.*, coalesce(found, 0) as found from wanted left join found using (operator, split, seed))
select
    $subject as subject, operator, split, seed,
    $pairs_per_split::integer as wanted, found::integer as found, ($pairs_per_split - found)::integer as missing,
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
