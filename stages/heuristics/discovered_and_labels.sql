-- Discovered predicates compared with labels, which come from the catalogue, and with the best
-- heuristics of the catalogue by the same measure.
--
-- The variances are of the activations of held-out cells, averaged over the neurons that have a
-- discovered predicate, a label, or both.
--
-- subject              VARCHAR   the model
-- operator             VARCHAR   add, subtract, multiply or divide
-- layer                SMALLINT  decoder layer, from 0; null for all layers
-- neurons              INTEGER   neurons of the layer
-- discovered           INTEGER   neurons with a discovered predicate
-- labelled             INTEGER   neurons with a label
-- both                 INTEGER   neurons with a discovered predicate and a label
-- only_discovered      INTEGER   neurons with a discovered predicate and no label
-- only_labelled        INTEGER   neurons with a label and no discovered predicate
-- outside_catalogue    INTEGER   neurons with a discovered predicate whose cells are those of no
--                                heuristic of the catalogue
-- conjunctions         INTEGER   neurons whose discovered predicate joins two conditions
-- conjunction          DOUBLE    mean share of variance that these conjunctions explain, at most 1
-- condition_sum        DOUBLE    mean share that their two conditions explain as a sum of two
--                                terms, with one coefficient more: the control of the conjunction
-- shorter              INTEGER   neurons with a discovered predicate that, with its own bits,
--                                describes them in fewer bits than the best heuristic of the
--                                catalogue
-- bits                 DOUBLE    mean length of the discovered predicates in bits
-- catalogue_bits       DOUBLE    bits that select a heuristic of the catalogue
-- explained            DOUBLE    mean share of variance that discovered predicates explain, at
--                                most 1; neurons without one count as 0
-- catalogue_explained  DOUBLE    mean share of variance that the best heuristic of the catalogue
--                                explains, at most 1
-- short_explained      DOUBLE    mean share of variance that the best predicate with at most
--                                catalogue_bits bits explains, at most 1
with
    labelled as (select distinct operator, layer, neuron from labels),
    joined as (
        select
            search.*,
            coalesce(discovered.discovered, false) as is_discovered,
            labelled.neuron is not null as is_labelled,
            is_discovered or is_labelled as either
        from discovery_search as search
        left join discovered using (operator, layer, neuron)
        left join labelled using (operator, layer, neuron)
    )
select
    $subject as subject, operator, layer,
    count(*)::integer as neurons,
    count(*) filter (is_discovered)::integer as discovered,
    count(*) filter (is_labelled)::integer as labelled,
    count(*) filter (is_discovered and is_labelled)::integer as both,
    count(*) filter (is_discovered and not is_labelled)::integer as only_discovered,
    count(*) filter (is_labelled and not is_discovered)::integer as only_labelled,
    count(*) filter (is_discovered and same_as is null)::integer as outside_catalogue,
    count(*) filter (is_discovered and atoms = 2)::integer as conjunctions,
    round(avg(explained) filter (is_discovered and atoms = 2), 6) as conjunction,
    round(avg(sum_explained) filter (is_discovered and atoms = 2), 6) as condition_sum,
    count(*) filter (is_discovered and gain > catalogue_gain)::integer as shorter,
    round(avg(bits) filter (is_discovered), 4) as bits,
    round(max(catalogue_bits), 4)::double as catalogue_bits,
    round(avg(case when is_discovered then explained else 0 end) filter (either), 6) as explained,
    round(avg(catalogue_explained) filter (either), 6) as catalogue_explained,
    round(avg(short_explained) filter (either), 6) as short_explained
from joined
group by grouping sets ((operator, layer), (operator))
order by operator, layer nulls last
