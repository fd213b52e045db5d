-- Bootstrap of causal mediation: how much each pair counts in each replicate, which draws among the
-- pairs of a template and operator. Templates and operators are chosen, not sampled, and each keeps
-- its share of the pairs: a new study would draw other operands for the same templates. Drawing
-- templates again would add their differences to every interval, and would lose classes of
-- positions that few templates have.
--
-- Of n pairs, n - 1 are drawn, and each draw counts n / (n - 1) times (Rao & Wu 1988). To draw n
-- would make variances too small by the share 1 / n: by half for two pairs. A single pair says
-- nothing about its variance. So templates with a single pair share their draws with the operator's
-- first template that has several, or with each other. This makes variances larger by the
-- difference of these templates.
--
-- subject    VARCHAR  the model
-- task       VARCHAR  task of the pairs
-- condition  VARCHAR  what differs within a pair
-- operator   VARCHAR  operator of the pairs; all: all operators together, and tasks without
--                     operators
-- replicate  INTEGER  number of the bootstrap replicate, from 0
-- weights    FLOAT[]  how much each pair of this group counts, in order of pair; the sum is the
--                     number of pairs; null if a task, condition and operator have a single pair
with
    replicates as (select unnest(range($mediation_replicates)) as replicate),
    templates as (
        select task, condition, template, operator, list(pair order by pair) as members
        from mediation_pairs
        group by task, condition, template, operator
    ),
    collapsed as (
        select task, condition, operator, members,
            if(len(members) > 1, template, min(template) filter (len(members) > 1) over (
                partition by task, condition, operator)) as template
        from templates
    ),
    strata as (
        select task, condition, template, operator, sum(len(members))::bigint as size,
            list_sort(flatten(list(members))) as members
        from collapsed
        group by task, condition, template, operator
    ),
    draws as (
        select
            replicate, size,
            lot($resampling_seed, task, condition, template, operator, replicate, turn) as drawn,
            members[1 + (drawn % size)::bigint] as pair
        from strata, replicates, unnest(range(size - 1)) as turns(turn)
    ),
    counts as (
        select replicate, pair, count(*) * size / (size - 1) as weight
        from draws
        group by replicate, pair, size
    ),
    sizes as (select unnest(members) as pair, size from strata)
select
    $subject as subject,
    task, condition, operator,
    replicate::integer as replicate,
    if(min(size) > 1, list(coalesce(weight, 0)::float order by pair), null) as weights
from grouped_pairs()
join sizes using (pair)
cross join replicates
left join counts using (replicate, pair)
group by task, condition, operator, replicate
order by task, condition, operator, replicate
