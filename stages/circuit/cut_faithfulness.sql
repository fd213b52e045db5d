-- How much of the answer the circuit recovers when its earlier attention edges are cut (Eq. 2), and
-- its accuracy.
--
-- subject            VARCHAR   the model
-- operator           VARCHAR   add, subtract, multiply or divide
-- circuit            VARCHAR   everything, nothing, circuit, circuit_cut, model_cut or last_cut, as
--                              in cut_interventions; the last three only if an edge is cut
-- heads              SMALLINT  number of heads in the circuit
-- faithfulness       DOUBLE    (mean NL - mean NL of nothing) / (mean NL of everything - mean NL of
--                              nothing), where NL is the answer's logit / the largest logit, both
--                              centred; 0 is nothing, 1 is everything
-- mean_of_ratios     DOUBLE    mean over prompts of each prompt's own ratio, as in the study's code
-- ci_low             DOUBLE    lower end of the faithfulness's bootstrap interval, over prompts
-- ci_high            DOUBLE    upper end of the faithfulness's bootstrap interval
-- accuracy           DOUBLE    share of prompts whose most likely next token is the answer, 0 to 1
-- prompts            BIGINT    number of prompts in these means
-- majority_accuracy  DOUBLE    accuracy of always predicting the most frequent answer of these
--                              prompts, 0 to 1
with
    circuits as (select distinct intervention, circuit, heads from cut_interventions),
    measured as (
        select
            operator, intervention,
            avg(nl - nothing) / nullif(avg(everything - nothing), 0) as faithfulness,
            avg(faithfulness(nl, nothing, everything)) as mean_of_ratios,
            avg(correct::integer) as accuracy, count(*) as prompts,
            majority_accuracy(answer_token) as majority_accuracy,
            list(nl - nothing order by pair) as gained,
            list(everything - nothing order by pair) as whole
        from answers_and_ends('cut') group by operator, intervention
    ),
    intervals as (
        select
            intervention,
            percentile_interval(list_dot_product(gained, weights)
                / nullif(list_dot_product(whole, weights), 0), $confidence) as edges
        from measured join bootstrap('evaluation') using (operator)
        group by intervention
    )
select
    $subject as subject, operator, circuit, heads, faithfulness, mean_of_ratios,
    edges[1] as ci_low, edges[2] as ci_high, accuracy, prompts, majority_accuracy
from measured
join circuits using (intervention)
left join intervals using (intervention)
order by operator, circuit
