-- How much of the answer each circuit restores (Eq. 2), and how often it predicts it: circuits of
-- heads, circuits of neurons, and cuts of attention. NL is the answer's logit / the largest logit,
-- both minus the mean logit over the vocabulary, because logits have no zero.
--
-- subject            VARCHAR   the model
-- operator           VARCHAR   add, subtract, multiply or divide
-- circuit            VARCHAR   what is not ablated, as in the table of interventions; everything
--                              and nothing are the ends of the scale
-- heads              SMALLINT  heads in the circuit
-- neurons_per_layer  INTEGER   neurons in each layer from which neurons are selected; null for
--                              other circuits
-- seed               INTEGER   seed of a random circuit; null for other circuits
-- experiment         VARCHAR   head_circuit, neuron_circuit or cut
-- faithfulness       DOUBLE    (mean NL - mean NL of nothing) / (mean NL of everything - mean NL of
--                              nothing): 0 as nothing, 1 as everything
-- mean_of_ratios     DOUBLE    mean over prompts of each prompt's own ratio, as the study's code
--                              computes faithfulness
-- ci_low             DOUBLE    lower end of the bootstrap interval of faithfulness, over seeds and
--                              prompts
-- ci_high            DOUBLE    upper end of the bootstrap interval of faithfulness
-- accuracy           DOUBLE    share of prompts whose most likely next token is the answer, 0 to 1
-- prompts            BIGINT    prompts
-- majority_accuracy  DOUBLE    accuracy of always predicting the most frequent answer of these
--                              prompts, 0 to 1
with
    circuits as (
        select distinct intervention, circuit, heads, neurons_per_layer, seed
        from neuron_circuit_interventions
    ),
    measured as (
        select
            operator, intervention,
            avg(nl - nothing) / nullif(avg(everything - nothing), 0) as faithfulness,
            avg(faithfulness(nl, nothing, everything)) as mean_of_ratios,
            avg(correct::integer) as accuracy,
            count(*) as prompts,
            majority_accuracy(answer_token) as majority_accuracy,
            list(nl - nothing order by pair) as gained,
            list(everything - nothing order by pair) as whole
        from answers_and_ends('neuron_circuit')
        group by operator, intervention
    ),
    intervals as (
        select
            intervention,
            percentile_interval(
                list_dot_product(gained, weights) / nullif(list_dot_product(whole, weights), 0),
                $confidence
            ) as edges
        from measured join bootstrap('evaluation') using (operator)
        group by intervention
    )
select
    $subject as subject,
    operator, circuit, heads,
    null::integer as neurons_per_layer,
    seed,
    'head_circuit' as experiment,
    faithfulness, mean_of_ratios, ci_low, ci_high, accuracy, prompts, majority_accuracy
from head_faithfulness
union all
select
    $subject, operator, circuit, heads, null, null, 'cut',
    faithfulness, mean_of_ratios, ci_low, ci_high, accuracy, prompts, majority_accuracy
from cut_faithfulness
union all
select
    $subject, operator, circuit, heads, neurons_per_layer, seed, 'neuron_circuit',
    faithfulness, mean_of_ratios, edges[1], edges[2], accuracy, prompts, majority_accuracy
from measured
join circuits using (intervention)
left join intervals using (intervention)
order by experiment, operator, circuit, heads, neurons_per_layer, seed
