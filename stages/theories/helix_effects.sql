-- How much of the answer comes back when a theory's words stand in for the residual stream, where another number's stream would lose it.
-- As in the study's activation patching (Kantamneni and Tegmark 2025, Sec. 4), seen from the other side: there a fit is patched into the
-- prompt of another number; here all but the number's place is as in the number's own prompt, so that a patch of the stream itself is
-- the clean run.
--
-- subject        VARCHAR   the model
-- operator       VARCHAR   add, subtract, multiply or divide
-- layer          SMALLINT  decoder layer that the replaced stream enters, from 0
-- position       VARCHAR   role of the token: op1, op2, or last for the answer
-- theory         VARCHAR   as in helix_interventions, without clean
-- numbers_below  INTEGER   prompts whose number is below this, with fits to such numbers; null: all
-- restored       DOUBLE    (answer's logit - that under another) / (clean - that under another), means over prompts: 1 is all, 0 nothing; null where another number does not surely lower the answer's logit (an interval of lost that holds 0)
-- ci_low         DOUBLE    lower end of its bootstrap interval, over prompts
-- ci_high        DOUBLE    upper end
-- lost           DOUBLE    by how many logits the stream of another number lowers the answer's
-- accuracy       DOUBLE    share of prompts whose most likely next token is the answer, 0 to 1
-- prompts        BIGINT    prompts, all of which the subject answers correctly
with
    answers as (
        select pairs.operator, layer, position, theory, coalesce(numbers_below, 1 << 30) as below, pair, correct, logit,
            case position when 'op1' then op1 when 'op2' then op2 else result end as number
        from answers_of('helix') join helix_interventions using (subject, intervention) join pairs using (subject, pair)
    ),
    beside as (  -- a prompt with another number weighs nothing
        select patched.operator, patched.layer, patched.position, patched.theory, patched.below, pair,
            patched.number < patched.below as told, if(told, patched.logit - another.logit, 0) as gained, if(told, clean.logit - another.logit, 0) as whole,
            patched.correct
        from answers as patched
        join answers as another using (pair, layer, position, below)
        join answers as clean using (pair)
        where another.theory = 'another' and clean.theory = 'clean' and patched.theory <> 'clean'
    ),
    measured as (
        select operator, layer, position, theory, below, avg(gained) / nullif(avg(whole), 0) as restored,
            sum(whole) / nullif(count(*) filter (where told), 0) as lost, avg(correct) filter (where told) as accuracy,
            count(*) filter (where told) as prompts, list(gained order by pair) as gained, list(whole order by pair) as whole
        from beside group by operator, layer, position, theory, below
    ),
    intervals as (
        select operator, layer, position, theory, below,
            percentile_interval(list_dot_product(gained, weights) / nullif(list_dot_product(whole, weights), 0), $confidence) as edges,
            percentile_interval(list_dot_product(whole, weights), $confidence)[1] > 0 as loses
        from measured join bootstrap('evaluation') using (operator)
        group by operator, layer, position, theory, below
    )
select
    $subject as subject, operator, layer, position, theory, nullif(below, 1 << 30)::integer as numbers_below,
    if(loses, restored, null) as restored, if(loses, edges[1], null) as ci_low, if(loses, edges[2], null) as ci_high, lost, accuracy,
    prompts
from measured
left join intervals using (operator, layer, position, theory, below)
order by operator, layer, position, theory, numbers_below nulls first
