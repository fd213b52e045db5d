-- Bootstrap of causal mediation: how often each replicate draws each pair, among the pairs of its
-- own template and operator. Templates and operators are chosen, not sampled, and each keeps its
-- share of the pairs: a new study would draw other operands for the same templates. Drawing
-- templates again would add their differences to every interval, and would lose classes of
-- positions that few templates have. If a template and operator have a single pair, it is always
-- drawn.
--
-- subject    VARCHAR  the model
-- task       VARCHAR  task of the pairs
-- condition  VARCHAR  what differs within a pair
-- operator   VARCHAR  operator of the pairs; all: all operators together, and tasks without
--                     operators
-- replicate  INTEGER  number of the bootstrap replicate, from 0
-- weights    FLOAT[]  how often each pair of this group was drawn, in order of pair; the sum is the
--                     number of pairs
with
    replicates as (select unnest(range($mediation_replicates)) as replicate),
    strata as (
        select task, condition, template, operator, list(pair order by pair) as members
        from mediation_pairs
        group by task, condition, template, operator
    ),
    draws as (
        select
            replicate,
            lot($resampling_seed, task, condition, template, operator, replicate, turn) as drawn,
            members[1 + (drawn % len(members))::bigint] as pair
        from strata, replicates, unnest(range(len(members))) as turns(turn)
    ),
    counts as (select replicate, pair, count(*) as weight from draws group by replicate, pair)
select
    $subject as subject,
    task, condition, operator,
    replicate::integer as replicate,
    list(coalesce(weight, 0)::float order by pair) as weights
from grouped_pairs()
cross join replicates
left join counts using (replicate, pair)
group by task, condition, operator, replicate
order by task, condition, operator, replicate
