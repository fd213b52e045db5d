-- Two-level bootstrap: how often each replicate draws each pair. Seeds are drawn first, then
-- prompts within the drawn seeds. The intervals are conservative, because seeds count as a source
-- of variance although all of them draw from the same prompts. With five seeds of 50 pairs, an
-- interval of 95 % contains the true mean in 98 % of simulated cases. It is 1.3 times as wide as an
-- interval from drawing pairs alone.
--
-- subject    VARCHAR  the model
-- operator   VARCHAR  operator of the pairs: add, subtract, multiply or divide
-- split      VARCHAR  split of the pairs: discovery or evaluation
-- replicate  INTEGER  number of the replicate, from 0
-- weights    FLOAT[]  how often the replicate draws each of the operator's pairs in the split, in
--                     order of pair; the sum is the number of pairs
with
    seeds as (
        select operator, split, seed, min(pair) as start, count(*) as size,
            row_number() over (partition by operator, split order by seed) - 1 as place,
            count(*) over (partition by operator, split) as seeds
        from pairs group by operator, split, seed
    ),
    replicates as (select unnest(range($replicates)) as replicate),
    slots as (  -- a slot is one draw of a seed; each seed has equally many pairs
        select operator, split, size, replicate, place as slot,
            lot($resampling_seed, operator, split, replicate, slot) % seeds as drawn
        from seeds, replicates
    ),
    draws as (
        select replicate, start
            + lot($resampling_seed, slots.operator, slots.split, replicate, slot, turn)
                % seeds.size as pair
        from slots
        join seeds on (seeds.operator, seeds.split, place) = (slots.operator, slots.split, drawn),
            unnest(range(slots.size)) as turns(turn)
    ),
    counts as (select replicate, pair, count(*) as weight from draws group by replicate, pair)
select
    $subject as subject, operator, split, replicate::integer as replicate,
    list(coalesce(weight, 0)::float order by pair) as weights
from pairs
cross join replicates
left join counts using (replicate, pair)
group by operator, split, replicate
order by operator, split, replicate
