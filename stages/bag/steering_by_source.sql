-- How often the prediction follows when late neurons are set to their mean activation over cells
-- with another digit or the opposite carry, as in steering. Neighbouring digits and other digits,
-- and prompts that carry and prompts that do not, have rows of their own. The whole model answers
-- all prompts correctly.
--
-- subject    VARCHAR  the model
-- operator   VARCHAR  add, subtract, multiply or divide
-- place      VARCHAR  what is steered, as in steering: ones, tens, asked or carry
-- arm        VARCHAR  patched neurons, as in steering_interventions: labelled, separating, matched,
--                     random or all
-- neurons    INTEGER  number of patched neurons
-- neighbour  BOOLEAN  whether the target digit is 1 larger or smaller than the prompt's own; null
--                     for carry
-- carries    BOOLEAN  whether the prompt itself carries from the ones into the tens (add) or
--                     borrows from the tens (subtract); null for digits
-- prompts    BIGINT   number of prompts
-- runs       BIGINT   number of steered prompts, over all draws
-- follows    DOUBLE   share of runs that predict what follows from the target, as in steering; mean
--                     over prompts, 0 to 1
-- ci_low     DOUBLE   lower end of the bootstrap interval of follows, over seeds and prompts
-- ci_high    DOUBLE   upper end of the bootstrap interval of follows
-- unchanged  DOUBLE   share of runs that still predict the result, mean over prompts, 0 to 1
with
    steered as (
        select distinct intervention, operator, place, draw, arm, neurons
        from steering_interventions where draw > 0
    ),
    answers as (
        select
            operator, place, arm, neurons, pair,
            if(place = 'carry', null, abs(target - source) = 1) as neighbour,
            if(place = 'carry', source = 1, null) as carries,
            coalesce(neighbour, carries) as yes,
            (predicted = wanted)::integer as followed,
            (predicted = answer_token)::integer as same
        from runs
        join steered using (intervention)
        join steering_targets using (pair, place, draw)
        join (select pair, answer_token from pairs) using (pair)
        where experiment = 'steering'
    ),
    prompts as (
        select operator, place, arm, neurons, neighbour, carries, yes, pair,
            avg(followed) as followed, avg(same) as same, count(*) as runs
        from answers group by operator, place, arm, neurons, neighbour, carries, yes, pair
    ),
    kinds as (select distinct operator, place, arm, neurons, yes from prompts),
    listed as (  -- every evaluation pair: a pair without such a run has no weight
        select operator, place, arm, neurons, yes,
            list(coalesce(followed, 0)::double order by pair) as follows,
            list((followed is not null)::integer::double order by pair) as known,
            count(followed) as counted
        from kinds
        join (select operator, pair from pairs where split = 'evaluation') using (operator)
        left join prompts using (operator, place, arm, neurons, yes, pair)
        group by operator, place, arm, neurons, yes
    ),
    intervals as (
        select operator, place, arm, neurons, yes,
            percentile_interval(weighted_mean(follows, known, counted, weights), $confidence)
                as edges
        from listed join bootstrap('evaluation') using (operator)
        group by operator, place, arm, neurons, yes
    ),
    measured as (
        select operator, place, arm, neurons, neighbour, carries, yes, count(*) as prompts,
            sum(runs)::bigint as runs, avg(followed) as follows, avg(same) as unchanged
        from prompts group by operator, place, arm, neurons, neighbour, carries, yes
    )
select
    $subject as subject, operator, place, arm, neurons, neighbour, carries, prompts, runs, follows,
    edges[1] as ci_low, edges[2] as ci_high, unchanged
from measured join intervals using (operator, place, arm, neurons, yes)
order by operator, place, arm, neurons, yes
