-- The effects of the experiment NAME.
-- Edit this: as written, it is the accuracy on each operator with each MLP ablated.
--
-- subject            VARCHAR   the model
-- operator           VARCHAR   add, subtract, multiply or divide
-- intervention       INTEGER   number of the intervention; 0 is the clean run
-- layer              SMALLINT  decoder layer whose MLP is ablated, from 0; null for the clean run
-- accuracy           DOUBLE    share of prompts that the model answers correctly, 0 to 1
-- probability        DOUBLE    mean probability of the correct answer, 0 to 1
-- prompts            BIGINT    number of prompts
-- majority_accuracy  DOUBLE    accuracy of always predicting the most frequent answer of these
--                              prompts, 0 to 1
select
    $subject as subject, pairs.operator, intervention, layer,
    avg(correct::integer) as accuracy,
    avg(answer_probability::double) as probability,
    count(*) as prompts,
    majority_accuracy(pairs.answer_token) as majority_accuracy
from runs
join NAME_interventions using (intervention)
join pairs using (pair)
group by pairs.operator, intervention, layer
order by pairs.operator, intervention
