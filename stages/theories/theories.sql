-- The theories of the late neurons side by side, at equal numbers of parameters: what each explains, and what it does in their place.
--
-- subject     VARCHAR  the model
-- operator    VARCHAR  add, subtract, multiply or divide
-- theory      VARCHAR  bag, helix or waves, as in theory_fits; mean, each neuron's mean over the operator's trained cells alone; itself, the neurons as they are
-- parameters  INTEGER  terms that a neuron may have, without the intercept; 0 of mean, null of itself
-- what        VARCHAR  activation, logit and written as in theory_fits, on held-out cells; with all late neurons replaced at the last position: restored (of the answer's logit, 0 as with their means, 1 as without a replacement) and accuracy
-- value       DOUBLE   1 is all; of accuracy the share of prompts whose most likely next token is the answer
-- ci_low      DOUBLE   lower end of its bootstrap interval, over neurons, cells or prompts
-- ci_high     DOUBLE   upper end
-- relabelled  DOUBLE   value of the same search on maps whose operands are relabelled; of restored and accuracy for the most parameters alone
-- choices     INTEGER  terms that a neuron's are chosen from; null where none is
-- samples     BIGINT   neurons, cells or prompts
with
    patches as (
        select distinct subject, intervention, theory, coalesce(parameters, -1) as size, kind from theory_interventions
    ),
    answers as (
        select operator, theory, size, kind, pair, correct, logit
        from answers_of('theory') join patches using (subject, intervention) join pairs using (subject, pair)
    ),
    ends as (
        select operator, pair, max(logit) filter (where theory = 'mean') as mean, max(logit) filter (where theory = 'clean') as clean
        from answers group by operator, pair
    ),
    summed as (
        select operator, theory, size, kind, list(logit - mean order by pair) as gained, list(clean - mean order by pair) as whole,
            list(correct::double order by pair) as right_ones, avg(logit - mean) / nullif(avg(clean - mean), 0) as restored,
            avg(correct) as accuracy, count(*) as prompts
        from answers join ends using (operator, pair)
        where theory <> 'clean' group by operator, theory, size, kind
    ),
    intervals as (
        select operator, theory, size, kind,
            percentile_interval(list_dot_product(gained, weights) / nullif(list_dot_product(whole, weights), 0), $confidence)
                as of_restored,
            percentile_interval(list_dot_product(right_ones, weights) / prompts, $confidence) as of_accuracy
        from summed join bootstrap('evaluation') using (operator)
        group by operator, theory, size, kind
    ),
    run as (
        select operator, theory, size, kind, unnest(['restored', 'accuracy']) as what, unnest([restored, accuracy]) as value,
            unnest([of_restored[1], of_accuracy[1]]) as ci_low, unnest([of_restored[2], of_accuracy[2]]) as ci_high, prompts
        from summed join intervals using (operator, theory, size, kind)
    ),
    searched as (select distinct operator, theory, choices from theory_fits),
    relabelled as (select operator, theory, size, what, value as relabelled from run where kind = 'relabelled'),
    together as (
        select operator, theory, parameters, what, value, ci_low, ci_high, relabelled, choices,
            if(what = 'activation', neurons, cells) as samples
        from theory_fits where layer is null
        union all
        select operator, theory, nullif(size, -1), what, value, ci_low, ci_high, relabelled, choices, prompts
        from run left join relabelled using (operator, theory, size, what) left join searched using (operator, theory)
        where kind = 'fit'
    )
select
    $subject as subject, operator, theory, parameters::integer as parameters, what, value, ci_low, ci_high, relabelled, choices,
    samples::bigint as samples
from together
order by operator, what, parameters nulls last, theory
