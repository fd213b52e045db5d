-- What each fault of the published code that changes a number does on this model: the number
-- without the fault and with it.
--
-- subject       VARCHAR  the model
-- operator      VARCHAR  add, subtract, multiply or divide
-- fault         VARCHAR  name of the fault. For sizes k, as in fault_scores, or both sizes; for
--                        controls, as in fault_knockouts; for ablations by prompt, ranking by count
--                        or control with associated neurons; for circuits, ranking by mean + std
-- number        VARCHAR  number of the fault in the list at the end of the study's page; null if
--                        only its text has it
-- criterion     VARCHAR  for ablations, criterion by which neurons have heuristics, as in
--                        heuristic_neurons; null otherwise
-- ablation      VARCHAR  for ablations, value that neurons take: zero or mean; null otherwise
-- measure       VARCHAR  what is measured, in words
-- right_value   DOUBLE   value without the fault
-- faulty_value  DOUBLE   value with the fault; null if the fault leaves nothing to measure
-- difference    DOUBLE   faulty_value - right_value
with
    sizes as (  -- neurons of all layers, classified by a raw score of $published
        select
            operator, if(fault = 'both', 'both sizes', fault) as fault,
            case when fault = 'both' then '2 and 3' when fault like 'op2%' then '2'
                else '3' end as number,
            null as criterion, null as ablation,
            'share of neurons classified, heuristics of ' || quantities as measure,
            sum(classified - gained + lost) / sum(neurons) as right_value,
            sum(classified) / sum(neurons) as faulty_value
        from fault_scores where fault <> 'none' and threshold = $published
        group by operator, fault, quantities
    ),
    by_heuristic as (
        select operator, criterion, fault, ablation, unnest([
                {'measure': 'heuristics compared', 'value': heuristics::double},
                {'measure': 'share of other prompts that are associated',
                    'value': associated_among_other},
                {'measure': 'accuracy of associated prompts', 'value': accuracy_associated},
                {'measure': 'accuracy of other prompts', 'value': accuracy_other},
                {'measure': 'accuracy, other - associated prompts', 'value': dissociation},
                {'measure': 'logit change, other - associated prompts', 'value': logit_dissociation}
            ], recursive => true)
        from fault_knockouts
    ),
    controls as (
        select named.fault, number, clean.* exclude (fault, value), clean.value as right_value,
            faulty.value as faulty_value
        from by_heuristic as clean
        join (values ('contaminated control', '4'), ('true division', '5')) as named(fault, number)
            on clean.fault = 'none' and (number = '4' or operator = 'divide')
        left join by_heuristic as faulty
            on (faulty.fault, faulty.operator, faulty.criterion, faulty.ablation, faulty.measure)
                = (named.fault, clean.operator, clean.criterion, clean.ablation, clean.measure)
    ),
    by_prompt as (
        select
            operator, criterion, ablation, neurons_per_layer as n,
            any_value(accuracy) filter (arm = 'heuristic') as by_score,
            any_value(accuracy) filter (arm = 'count') as by_count,
            any_value(accuracy) filter (arm = 'control') as control,
            any_value(accuracy) filter (arm = 'contaminated') as contaminated
        from knockouts_by_prompt where neurons_per_layer > 0
        group by operator, criterion, ablation, neurons_per_layer
    ),
    circuits as (  -- circuits of the top neurons by mean effect, and by mean + standard deviation
        select
            operator, neurons_per_layer as k,
            any_value(faithfulness) filter (circuit = 'effect') as right_faithfulness,
            any_value(faithfulness) filter (circuit = 'effect_plus_std') as faulty_faithfulness,
            any_value(accuracy) filter (circuit = 'effect') as right_accuracy,
            any_value(accuracy) filter (circuit = 'effect_plus_std') as faulty_accuracy
        from faithfulness where experiment = 'neuron_circuit' group by operator, neurons_per_layer
    ),
    tops as (
        select operator, k, avg(shared) as shared from ranking_agreement
        where position = 'last' and ranking_a = 'effect' and ranking_b = 'effect_plus_std'
        group by operator, k
    ),
    measured as (
        select operator, fault, number, criterion, ablation, measure, right_value, faulty_value
        from sizes
        union all
        select operator, fault, number, criterion, ablation, measure, right_value, faulty_value
        from controls
        union all
        select
            operator, 'ranking by count', '9', criterion, ablation,
            format('accuracy of prompts without {} neurons of theirs per layer', n),
            by_score, by_count
        from by_prompt
        union all
        select
            operator, 'control with associated neurons', '9', criterion, ablation,
            format('accuracy of prompts without {} other neurons per layer', n), control,
            contaminated
        from by_prompt
        union all
        select operator, 'ranking by mean + std', null, null, null,
            format('share of a layer''s top {} neurons', k), 1, shared
        from tops
        union all
        select operator, 'ranking by mean + std', null, null, null, unnest([
                format('faithfulness of the top {} neurons', k),
                format('accuracy of the top {} neurons', k)
            ]),
            unnest([right_faithfulness, right_accuracy]),
            unnest([faulty_faithfulness, faulty_accuracy])
        from circuits join tops using (operator, k)
    )
select $subject as subject, operator, fault, number, criterion, ablation, measure,
    right_value::double as right_value,
    faulty_value::double as faulty_value, faulty_value::double - right_value::double as difference
from measured
order by operator, number nulls last, fault, criterion, ablation, measure
