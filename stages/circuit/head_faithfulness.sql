-- How much of the model's answer each circuit of heads recovers (Eq. 2, Fig. 11). NL is the
-- normalised logit of Eq. 2, the answer's logit / the largest logit. It is taken on logits centred
-- over the vocabulary, because it changes when all logits shift.
--
-- subject            VARCHAR   the model
-- operator           VARCHAR   add, subtract, multiply or divide
-- circuit            VARCHAR   everything, nothing, effect, logit_effect or random, with means
--                              pooled over operators, each weighted equally; own_means (heads as
--                              logit_effect) or nothing_own_means, with means over the operator's
--                              own prompts
-- heads              SMALLINT  number of heads in the circuit
-- seed               INTEGER   number of a random order of heads, from 0; null otherwise
-- faithfulness       DOUBLE    (mean NL of the circuit - mean NL of nothing) / (mean NL of
--                              everything - mean NL of nothing); 0 is nothing, 1 is everything;
--                              null if the divisor is 0. For own_means, nothing is
--                              nothing_own_means
-- mean_of_ratios     DOUBLE    mean over prompts of each prompt's own ratio, as in the study's
--                              code; prompts whose divisor is 0 are left out
-- ci_low             DOUBLE    lower end of the faithfulness's bootstrap interval, over seeds and
--                              prompts
-- ci_high            DOUBLE    upper end of the faithfulness's bootstrap interval
-- accuracy           DOUBLE    share of prompts answered correctly, 0 to 1
-- prompts            BIGINT    number of prompts in these means
-- majority_accuracy  DOUBLE    accuracy of always predicting the most frequent answer of these
--                              prompts, 0 to 1
with
    circuits as (select distinct intervention, operator, circuit, heads, seed
        from head_circuit_interventions),
    normalised as (  -- 0 if all logits are equal
        select intervention, pair, answer_token, correct, coalesce(normal_logit(runs), 0) as logit
        from runs join pairs using (subject, pair)
    ),
    ends as (  -- both ends of the scale for each prompt
        select
            pair,
            any_value(logit) filter (where circuit = 'everything') as everything,
            any_value(logit) filter (where circuit = 'nothing') as nothing,
            any_value(logit) filter (where circuit = 'nothing_own_means') as nothing_own_means
        from normalised join circuits using (intervention)
        where circuit in ('everything', 'nothing', 'nothing_own_means')
        group by pair
    ),
    scaled as (
        select intervention, pair, answer_token, correct, logit, everything,
            if(circuit like '%own_means', nothing_own_means, nothing) as nothing
        from normalised join circuits using (intervention) join ends using (pair)
    ),
    measured as (
        select
            intervention,
            faithfulness(avg(logit), avg(nothing), avg(everything)) as faithfulness,
            avg(faithfulness(logit, nothing, everything)) as mean_of_ratios,
            avg(correct::integer) as accuracy, count(*) as prompts,
            majority_accuracy(answer_token) as majority_accuracy,
            list(logit - nothing order by pair) as recovered,
            list(everything - nothing order by pair) as whole
        from scaled
        group by intervention
    ),
    intervals as (
        select
            intervention,
            percentile_interval(list_dot_product(recovered, weights)
                / nullif(list_dot_product(whole, weights), 0), $confidence) as ends
        from measured join circuits using (intervention)
        join bootstrap('evaluation') using (operator)
        group by intervention
    )
select
    $subject as subject, operator, circuit, heads, seed, faithfulness, mean_of_ratios,
    intervals.ends[1] as ci_low, intervals.ends[2] as ci_high, accuracy, prompts,
    majority_accuracy
from circuits
join measured using (intervention)
left join intervals using (intervention)
order by intervention
