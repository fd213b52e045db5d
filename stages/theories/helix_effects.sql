-- How much of the answer comes back when a theory's words stand in for the residual stream, where another number's stream would lose it.
-- As in the study's activation patching (Kantamneni and Tegmark 2025, Sec. 4), seen from the other side: there a fit is patched into the
-- prompt of another number; here all but the number's place is as in the number's own prompt, so that a patch of the stream itself is
-- the clean run.
--
-- subject           VARCHAR   the model
-- operator          VARCHAR   add, subtract, multiply or divide
-- layer             SMALLINT  decoder layer that the replaced stream enters, from 0
-- position          VARCHAR   role of the token: op1, op2, or last for the answer
-- theory            VARCHAR   as in helix_interventions, without clean
-- restored          DOUBLE    (answer's logit - that under another) / (clean - that under another), means over prompts: 1 is all, 0 nothing; null where another number does not surely lower the answer's logit (an interval of lost that holds 0)
-- ci_low            DOUBLE    lower end of its bootstrap interval, over prompts
-- ci_high           DOUBLE    upper end
-- lost              DOUBLE    by how many logits the stream of another number lowers the answer's
-- accuracy          DOUBLE    share of prompts whose most likely next token is the answer, 0 to 1
-- prompts           BIGINT    prompts, all of which the subject answers correctly
with
    answers as (
        select pairs.operator, layer, position, theory, pair, correct, logit
        from answers_of('helix') join helix_interventions using (subject, intervention) join pairs using (subject, pair)
    ),
    beside as (
        select patched.operator, patched.layer, patched.position, patched.theory, pair, patched.correct,
            patched.logit - another.logit as gained, clean.logit - another.logit as whole
        from answers as patched
        join answers as another using (pair, layer, position)
        join answers as clean using (pair)
        where another.theory = 'another' and clean.theory = 'clean' and patched.theory <> 'clean'
    ),
    measured as (
        select operator, layer, position, theory, avg(gained) / nullif(avg(whole), 0) as restored, avg(whole) as lost,
            avg(correct) as accuracy, count(*) as prompts, list(gained order by pair) as gained, list(whole order by pair) as whole
        from beside group by operator, layer, position, theory
    ),
    intervals as (
        select operator, layer, position, theory,
            percentile_interval(list_dot_product(gained, weights) / nullif(list_dot_product(whole, weights), 0), $confidence) as edges,
            percentile_interval(list_dot_product(whole, weights), $confidence)[1] > 0 as loses
        from measured join bootstrap('evaluation') using (operator)
        group by operator, layer, position, theory
    )
select
    $subject as subject, operator, layer, position, theory, if(loses, restored, null) as restored, if(loses, edges[1], null) as ci_low,
    if(loses, edges[2], null) as ci_high, lost, accuracy, prompts
from measured
left join intervals using (operator, layer, position, theory)
order by operator, layer, position, theory
