-- Precision and recall of discovered predicates on the synthetic model `planted`, whose heuristics
-- are known.
--
-- A predicate is right if the same cells satisfy it as the planted heuristic, or exactly the other
-- cells. The search knows no heuristics. It gives a neuron one predicate, so recall is at most
-- about one half on mixtures, most of which have two heuristics.
--
-- grade       VARCHAR  how exactly neurons implement what was planted: exact, partial, soft,
--                      mixture (of two heuristics), noise (nothing was planted) or all
-- neurons     INTEGER  neurons of the grade, counted once for each operator
-- planted     INTEGER  planted pairs of neuron and heuristic
-- discovered  INTEGER  neurons with a discovered predicate
-- correct     INTEGER  discovered predicates that are right
-- precision   DOUBLE   correct / discovered, 0 to 1; null if nothing is discovered
-- recall      DOUBLE   correct / planted, 0 to 1; null if nothing was planted
-- explained   DOUBLE   mean share of the variance of held-out cells that the discovered
--                      predicates explain, at most 1; null if nothing is discovered
with
    planted as (from planted_truth),
    sizes as (
        select
            coalesce(grade, 'all') as grade,
            count(distinct (operator, layer, neuron)) as neurons,
            count(heuristic) as planted
        from planted group by grouping sets ((grade), ())
    ),
    right_ones as (
        select distinct operator, layer, neuron
        from discovered
        join planted using (operator, layer, neuron)
        left join heuristic_overlaps as shared
            on (shared.operator, shared.heuristic, shared.other)
                = (discovered.operator, discovered.same_as, planted.heuristic)
        where discovered and (same_as = planted.heuristic or shared.same)
    ),
    counted as (
        select
            coalesce(grade, 'all') as grade, count(*) as discovered,
            count(*) filter ((operator, layer, neuron) in (from right_ones)) as correct,
            avg(explained) as explained
        from discovered
        join (select distinct operator, layer, neuron, grade from planted)
            using (operator, layer, neuron)
        where discovered
        group by grouping sets ((grade), ())
    )
select
    grade, neurons::integer as neurons, planted::integer as planted,
    coalesce(discovered, 0)::integer as discovered, coalesce(correct, 0)::integer as correct,
    correct / nullif(discovered, 0) as precision,
    coalesce(correct, 0) / nullif(planted, 0) as recall,
    round(explained, 6) as explained
from sizes left join counted using (grade)
order by grade
