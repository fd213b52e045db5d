-- How much of the answer's logit a theory of a number restores. The model runs with another
-- number's residual stream, which lowers the answer's logit, and with the theory's prediction in
-- its place. The study (Kantamneni and Tegmark 2025, Sec. 4) patches a fit into another number's
-- prompt. Here the prompt is the number's own, and only the residual stream at the number's token
-- changes, so that a patch with the original residual stream is the clean run.
--
-- subject            VARCHAR   the model
-- operator           VARCHAR   add, subtract, multiply or divide
-- layer              SMALLINT  decoder layer that the patched residual stream enters, from 0
-- position           VARCHAR   role of the token: op1 or op2 for the operand, last for the answer
-- theory             VARCHAR   theory that predicts the residual stream, as in helix_interventions,
--                              or another (the residual stream of another number)
-- numbers_below      INTEGER   only prompts whose number is below this, with fits to such numbers;
--                              null: all prompts
-- restored           DOUBLE    (answer's logit - that with another number) / (clean logit - that
--                              with another number), means over prompts: 1 is the clean run, 0
--                              another number, and values may lie outside; null if another number
--                              does not clearly lower the logit (the interval of lost begins at 0
--                              or below)
-- ci_low             DOUBLE    lower end of the bootstrap interval of restored, over prompts
-- ci_high            DOUBLE    upper end of the bootstrap interval of restored, over prompts
-- lost               DOUBLE    answer's logit in the clean run - that with another number's
--                              residual stream, in logits, mean over prompts
-- accuracy           DOUBLE    share of prompts whose most likely next token is the answer, 0 to 1
-- prompts            BIGINT    prompts, all of which the model answers correctly without a patch
-- majority_accuracy  DOUBLE    accuracy of always predicting the most frequent answer of these
--                              prompts, 0 to 1
with
    answers as (
        select
            pairs.operator, layer, position, theory, numbers_below, pair, answer_token, correct,
            logit,
            case position when 'op1' then op1 when 'op2' then op2 else result end as number
        from answers_of('helix')
        join helix_interventions using (subject, intervention)
        join pairs using (subject, pair)
    ),
    analysed as (
        select *, coalesce(numbers_below, 1 << 30) as below from answers
        union all
        -- if no number is left out, the runs with all numbers are those with small numbers, too
        select *, $study_numbers
        from answers
        anti join (from helix_interventions where numbers_below is not null) using (position, layer)
        where position in (
            select position from answers group by position having max(number) < $study_numbers)
    ),
    compared as (  -- a prompt with a larger number has weight 0
        select
            patched.operator, patched.layer, patched.position, patched.theory, patched.below, pair,
            patched.number < patched.below as counts,
            if(counts, patched.logit - another.logit, 0) as gained,
            if(counts, clean.logit - another.logit, 0) as whole,
            patched.correct, patched.answer_token
        from analysed as patched
        join analysed as another using (pair, layer, position, below)
        join answers as clean using (pair)
        where another.theory = 'another' and clean.theory = 'clean' and patched.theory <> 'clean'
    ),
    measured as (
        select
            operator, layer, position, theory, below,
            avg(gained) / nullif(avg(whole), 0) as restored,
            sum(whole) / nullif(count(*) filter (where counts), 0) as lost,
            avg(correct) filter (where counts) as accuracy,
            count(*) filter (where counts) as prompts,
            majority_accuracy(if(counts, answer_token, null)) as majority_accuracy,
            list(gained order by pair) as gained,
            list(whole order by pair) as whole
        from compared
        group by operator, layer, position, theory, below
    ),
    intervals as (
        select
            operator, layer, position, theory, below,
            percentile_interval(
                list_dot_product(gained, weights) / nullif(list_dot_product(whole, weights), 0),
                $confidence
            ) as edges,
            percentile_interval(list_dot_product(whole, weights), $confidence)[1] > 0 as loses
        from measured join bootstrap('evaluation') using (operator)
        group by operator, layer, position, theory, below
    )
select
    $subject as subject,
    operator, layer, position, theory,
    nullif(below, 1 << 30)::integer as numbers_below,
    if(loses, restored, null) as restored,
    if(loses, edges[1], null) as ci_low,
    if(loses, edges[2], null) as ci_high,
    lost, accuracy, prompts, majority_accuracy
from measured
left join intervals using (operator, layer, position, theory, below)
order by operator, layer, position, theory, numbers_below nulls first
