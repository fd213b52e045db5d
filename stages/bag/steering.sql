-- How often the prediction follows when late neurons are set to their mean activation over cells
-- whose result has another digit at one place, or over cells with a carry other than the prompt's.
-- The whole model answers all prompts correctly.
--
-- subject        VARCHAR  the model
-- operator       VARCHAR  add, subtract, multiply or divide
-- place          VARCHAR  what is steered: ones or tens (a digit of the result), asked (the digit
--                         that the model predicts, if it predicts one of several) or carry (the
--                         carry into the tens, or the borrow from them)
-- arm            VARCHAR  patched neurons, as in steering_interventions: labelled, separating,
--                         matched, random or all
-- target         VARCHAR  which mean activations are set: other (those of random digits other than
--                         the result's, or of the opposite carry) or own (those of the result's
--                         digit or carry, the control that should change nothing)
-- neurons        INTEGER  number of patched neurons
-- runs           BIGINT   number of steered prompts, over all draws
-- follows        DOUBLE   share of runs that predict what follows from the target, 0 to 1: the
--                         result with the target digit in the place of its own and all other
--                         digits unchanged; for carry the result that is 10 larger or smaller. A
--                         model that predicts one digit must predict the digit of this result
-- ci_low         DOUBLE   lower end of the bootstrap interval of follows, over seeds and prompts
-- ci_high        DOUBLE   upper end of the bootstrap interval of follows
-- digit_follows  DOUBLE   share of runs whose prediction has the target digit at the place and any
--                         other digits, 0 to 1; 0.1 if predictions were random numbers; null for
--                         asked and carry
-- unchanged      DOUBLE   share of runs that still predict the result, 0 to 1
-- other          DOUBLE   share of runs that predict anything else, 0 to 1
with
    steered as (
        select distinct intervention, operator, place, draw, arm, neurons
        from steering_interventions
    ),
    answers as (
        select
            operator, place, arm, if(draw = 0, 'own', 'other') as target, neurons, pair,
            case place when 'ones' then 1 when 'tens' then 10 end as size,
            (predicted = wanted)::integer as followed,
            if(size is null, null, coalesce(
                number // size % 10 = steering_targets.target and number >= if(size = 1, 0, size),
                false
            ))::integer as digit_followed,
            (predicted = answer_token)::integer as same
        from runs
        join steered using (intervention)
        join steering_targets using (pair, place, draw)
        join (select pair, answer_token from pairs) using (pair)
        left join (select number, token from numbers) on token = predicted
        where experiment = 'steering'
    ),
    prompts as (
        select operator, place, arm, target, neurons, pair,
            avg(followed) as followed, avg(digit_followed) as digit_followed, avg(same) as same,
            avg(larger(followed, same)) as explained, count(*) as runs
        from answers group by operator, place, arm, target, neurons, pair
    ),
    kinds as (
        select distinct operator, place, arm, target, neurons from prompts
    ),
    listed as (  -- every evaluation pair, since some results have no tens
        select operator, place, arm, target, neurons,
            list(coalesce(followed, 0)::double order by pair) as follows,
            list((followed is not null)::integer::double order by pair) as known,
            count(followed) as counted
        from kinds
        join (select operator, pair from pairs where split = 'evaluation') using (operator)
        left join prompts using (operator, place, arm, target, neurons, pair)
        group by operator, place, arm, target, neurons
    ),
    intervals as (
        select operator, place, arm, target, neurons,
            percentile_interval(weighted_mean(follows, known, counted, weights), $confidence)
                as edges
        from listed join bootstrap('evaluation') using (operator)
        group by operator, place, arm, target, neurons
    ),
    measured as (
        select operator, place, arm, target, neurons, sum(runs)::bigint as runs,
            avg(followed) as follows, avg(digit_followed) as digit_follows, avg(same) as unchanged,
            1 - avg(explained) as other
        from prompts group by operator, place, arm, target, neurons
    )
select
    $subject as subject, operator, place, arm, target, neurons, runs, follows, edges[1] as ci_low,
    edges[2] as ci_high, digit_follows, unchanged, other
from measured join intervals using (operator, place, arm, target, neurons)
order by operator, place, arm, target, neurons
