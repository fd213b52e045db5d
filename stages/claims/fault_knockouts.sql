-- What two faults of the published code change in ablations by heuristic: means over the ablated
-- heuristics.
--
-- Contaminated control: $prompts other prompts are drawn from all prompts that are not among the
-- $prompts drawn as associated, whether or not they satisfy the heuristic. Unlike in the study,
-- associated prompts are all that there are, so that only the control differs.
--
-- True division: quotients are not rounded before a heuristic of the result is evaluated. 11 / 2 is
-- still within 5..5, which is [5, 6), but it has no remainder and no digits, and is in no set of
-- results.
--
-- subject                       VARCHAR  the model
-- operator                      VARCHAR  add, subtract, multiply or divide
-- criterion                     VARCHAR  criterion by which neurons have the heuristic, as in
--                                        heuristic_neurons: label, fdr or threshold
-- fault                         VARCHAR  none (as in knockouts_by_heuristic), contaminated control,
--                                        or true division (for divide alone)
-- ablation                      VARCHAR  value that the neurons' activations take at the last
--                                        position: zero or mean (pooled over operators)
-- heuristics                    INTEGER  number of ablated heuristics with associated and other
--                                        evaluation prompts; the means are over these
-- associated_among_other        DOUBLE   share of the prompts counted as other that do satisfy the
--                                        heuristic, 0 to 1
-- accuracy_associated           DOUBLE   share of associated prompts still answered correctly, 0 to
--                                        1
-- accuracy_other                DOUBLE   share of other prompts still answered correctly, 0 to 1
-- logit_change_associated       DOUBLE   mean change of the answer's logit above the mean logit,
--                                        after - before, on associated prompts
-- logit_change_other            DOUBLE   mean change of the answer's logit above the mean logit,
--                                        after - before, on other prompts
-- dissociation                  DOUBLE   accuracy_other - accuracy_associated, -1 to 1
-- logit_dissociation            DOUBLE   logit_change_other - logit_change_associated, in logits
-- majority_accuracy_associated  DOUBLE   accuracy of always predicting the most frequent answer of
--                                        the associated prompts, 0 to 1
-- majority_accuracy_other       DOUBLE   accuracy of always predicting the most frequent answer of
--                                        the other prompts, 0 to 1
with
    interventions as (  -- knockout_interventions has one row per patch
        select distinct intervention, operator, criterion, heuristic, replacement as ablation, arm
        from knockout_interventions where arm in ('heuristic', 'none')
    ),
    answers as (from answers_of('knockout')),
    clean as (select pair, logit as logit_before from answers
        join interventions using (intervention) where arm = 'none'),
    meant as (  -- every heuristic with every prompt; sets of results are not in the catalogue
        select
            tested.operator, tested.heuristic, pairs.pair,
            associated.pair is not null as associated,
            coalesce(quantity, 'result') = 'result'
                and coalesce(kind, 'multi-result') not in ('range', 'period') as discrete,
            pairs.operator = 'divide' and result * op2 <> op1 as fractional
        from (
            select distinct operator, heuristic from interventions where arm = 'heuristic'
        ) as tested
        join pairs on pairs.operator = tested.operator and split = 'evaluation'
        left join heuristics
            on (heuristics.operator, heuristics.heuristic) = (tested.operator, tested.heuristic)
        left join prompt_associations as associated
            on (associated.operator, associated.heuristic, associated.pair)
                = (tested.operator, tested.heuristic, pairs.pair)
    ),
    drawn as (
        select *, associated and row_number() over (
                partition by operator, heuristic, associated
                order by lot('associated', $fault_seed, operator, heuristic, pair), pair
            ) <= $prompts as taken
        from meant
    ),
    contaminated as (
        select *, row_number() over (
                partition by operator, heuristic
                order by lot('other', $fault_seed, operator, heuristic, pair), pair
            ) as place
        from drawn where not taken
        qualify place <= $prompts
    ),
    parted as (  -- counted: whether a prompt counts as associated; associated: whether it is
        select operator, heuristic, pair, 'none' as fault, associated as counted, associated
        from meant
        union all
        select operator, heuristic, pair, 'contaminated control', true, true from meant
        where associated
        union all
        select operator, heuristic, pair, 'contaminated control', false, associated
        from contaminated
        union all
        select operator, heuristic, pair, 'true division',
            associated and not (discrete and fractional), associated
        from meant where operator = 'divide'
    ),
    measured as (
        select
            operator, criterion, fault, ablation, heuristic,
            avg(associated::integer) filter (not counted) as associated_among_other,
            avg(correct) filter (counted) as accuracy_associated,
            avg(correct) filter (not counted) as accuracy_other,
            avg(logit - logit_before) filter (counted) as logit_change_associated,
            avg(logit - logit_before) filter (not counted) as logit_change_other,
            majority_accuracy(if(counted, answer_token, null)) as majority_associated,
            majority_accuracy(if(counted, null, answer_token)) as majority_other
        from interventions
        join parted using (operator, heuristic)
        join answers using (intervention, pair)
        join clean using (pair)
        join (select pair, answer_token from pairs) using (pair)
        group by all
    )
select
    $subject as subject, operator, criterion, fault, ablation, count(*)::integer as heuristics,
    avg(associated_among_other) as associated_among_other,
    avg(accuracy_associated) as accuracy_associated, avg(accuracy_other) as accuracy_other,
    avg(logit_change_associated) as logit_change_associated,
    avg(logit_change_other) as logit_change_other,
    avg(accuracy_other - accuracy_associated) as dissociation,
    avg(logit_change_other - logit_change_associated) as logit_dissociation,
    avg(majority_associated) as majority_accuracy_associated,
    avg(majority_other) as majority_accuracy_other
from measured
where accuracy_associated is not null and accuracy_other is not null
group by operator, criterion, fault, ablation
order by operator, criterion, fault, ablation
