-- Precision and recall of labels on the synthetic model `planted`, whose heuristics are known, by
-- the threshold of the chance-corrected score and the false discovery rate.
--
-- A label is right if it names the planted heuristic or a heuristic with the same cells. Precision
-- is over the labels of a grade's neurons. Recall is over the pairs of neuron and heuristic that
-- were planted in them.
--
-- threshold         DOUBLE   smallest chance-corrected score of a label, 0 to 1
-- level             DOUBLE   largest q_value of a label, 0 to 1; 1 is no control
-- grade             VARCHAR  how exactly neurons implement what was planted: exact, partial, soft,
--                            mixture (of two heuristics), noise (nothing was planted) or all
-- kind              VARCHAR  range, modulo, pattern or all: kind of the label for labels, kind of
--                            the planted heuristic for planted
-- neurons           INTEGER  neurons of the grade, of all kinds, counted once for each operator
-- labelled_neurons  INTEGER  neurons of the grade with a label of the kind
-- planted           INTEGER  planted pairs of neuron and heuristic
-- labels            INTEGER  labels
-- right_labels      INTEGER  labels that are right
-- precision         DOUBLE   right_labels / labels, 0 to 1; null without labels
-- recall            DOUBLE   right_labels / planted, 0 to 1; null if nothing was planted
with
    settings as (
        select threshold, level
        from
            (select unnest($thresholds)::double as threshold),
            (select unnest($levels)::double as level)
    ),
    planted as (
        select operator, layer, neuron, grade, heuristic, heuristics.kind
        from planted_truth left join heuristics using (operator, heuristic)
    ),
    sizes as (
        select
            coalesce(grade, 'all') as grade,
            count(distinct (operator, layer, neuron)) as neurons
        from planted group by grouping sets ((grade), ())
    ),
    pairs as (
        select
            coalesce(grade, 'all') as grade, coalesce(kind, 'all') as kind, count(*) as planted
        from planted where heuristic is not null
        group by grouping sets ((grade, kind), (grade), (kind), ())
    ),
    right_pairs as (
        select operator, layer, neuron, matches.heuristic
        from matches
        join planted using (operator, layer, neuron)
        left join heuristic_overlaps as shared
            on (shared.operator, shared.heuristic, shared.other)
                = (matches.operator, matches.heuristic, planted.heuristic)
        where matches.heuristic = planted.heuristic or shared.same
    ),
    rated as (
        select
            operator, layer, neuron, grade, kind, chance_corrected, q_value,
            (operator, layer, neuron, heuristic) in (from right_pairs) as is_right
        from matches
        join (select distinct operator, layer, neuron, grade from planted)
            using (operator, layer, neuron)
        where nonredundant
    ),
    counted as (
        select
            threshold, level, coalesce(grade, 'all') as grade, coalesce(kind, 'all') as kind,
            count(*) as labels,
            count(*) filter (is_right) as right_labels,
            count(distinct (operator, layer, neuron)) as labelled_neurons
        from settings join rated on chance_corrected >= threshold and q_value <= level
        group by threshold, level, grouping sets ((grade, kind), (grade), (kind), ())
    ),
    kinds as (select kind from pairs union select kind from counted),
    every as (
        from settings cross join sizes cross join kinds
        left join pairs using (grade, kind)
        left join counted using (threshold, level, grade, kind)
    )
select
    threshold, level, grade, kind, neurons::integer as neurons,
    coalesce(labelled_neurons, 0)::integer as labelled_neurons,
    coalesce(planted, 0)::integer as planted,
    coalesce(labels, 0)::integer as labels,
    coalesce(right_labels, 0)::integer as right_labels,
    right_labels / nullif(labels, 0) as precision,
    coalesce(right_labels, 0) / nullif(planted, 0) as recall
from every
where kind = 'all' or planted > 0 or labels > 0
order by threshold, level, grade, kind
