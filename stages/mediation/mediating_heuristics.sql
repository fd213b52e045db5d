-- Whether the neurons that mediate the result in word problems are the heuristic neurons of the
-- grid. The k late neurons with the largest effects on a question of one operator are compared with
-- a set of neurons that the grid names for an operator, and with chance. Neurons that were not
-- patched on the questions (unit_mediation_interventions) do not count.
--
-- subject        VARCHAR   the model
-- layer          SMALLINT  decoder layer, from 0
-- ranking        VARCHAR   what ranks neurons: effect, logit_effect, or size (the absolute
--                          logit_effect)
-- k              INTEGER   number of neurons with the largest effects
-- width          INTEGER   patched neurons of the layer
-- question       VARCHAR   arithmetic_symbols, arithmetic_words or number_words
-- operator       VARCHAR   operator of the question
-- grid_operator  VARCHAR   operator of the grid, for which the set of neurons is named
-- members        VARCHAR   the set: neurons with a label (label), with a label about the result
--                          that they promote themselves (direct), or the k with the largest effects
--                          on the grid's prompts by the same ranking (top)
-- size           BIGINT    neurons in the set
-- shared         BIGINT    neurons in the set that are among the k
-- share          DOUBLE    shared / k, 0 to 1
-- chance         DOUBLE    expected share for k random neurons: size / width, 0 to 1
-- p_value        DOUBLE    probability that k random neurons share at least as many
--                          (hypergeometric), 0 to 1
with
    rankings as (select unnest(['effect', 'logit_effect', 'size']) as ranking),
    patched as (select distinct layer, unit as neuron from unit_effects where component = 'neuron'),
    widths as (select layer, count(*)::integer as width from patched group by layer),
    ks as (
        select distinct layer, k::integer as k, width
        from widths, unnest($overlap_ks) as wanted(k)
        where k <= width
    ),
    ranked as (
        select question, operator, layer, unit as neuron, ranking, rank, known
        from unit_rankings()
        where component = 'neuron' and half = 'both' and operator <> 'all'
    ),
    questions as (
        select question, operator, layer, ranking, count(*) filter (known) as known
        from ranked
        group by all
    ),
    grid as (
        select
            operator, layer, neuron,
            unnest(['effect', 'logit_effect', 'size']) as ranking,
            unnest([
                rank,
                rank_logit,
                row_number() over (
                    partition by operator, layer order by abs(logit_effect) desc, neuron)
            ]) as rank
        from neuron_effects
        where method = 'exact' and position = 'last'
    ),
    labelled as (from labels semi join patched using (layer, neuron)),
    named as (
        select operator, layer, neuron, 'label' as members, ranking, k
        from labelled cross join rankings join ks using (layer)
        union
        select operator, layer, neuron, 'direct', ranking, k
        from labelled cross join rankings join ks using (layer)
        where direct
        union all
        select operator, layer, neuron, 'top', ranking, k
        from grid join ks using (layer) semi join patched using (layer, neuron)
        where rank <= k
    ),
    operators as (select distinct operator from neuron_effects),
    sets as (
        select o.operator, layer, members, ranking, k, width, count(neuron) as size
        from operators as o
        cross join (values ('label'), ('direct'), ('top')) as kinds(members)
        cross join rankings
        cross join ks
        left join named as n using (operator, layer, members, ranking, k)
        group by all
        having members <> 'top' or size > 0
    ),
    compared as (
        select
            s.layer, s.ranking, s.k, q.question, q.operator, s.operator as grid_operator,
            s.members, size, width, count(r.neuron) as shared
        from questions as q
        join sets as s using (layer, ranking)
        left join named as n
            on (n.operator, n.layer, n.members, n.ranking, n.k)
                = (s.operator, s.layer, s.members, s.ranking, s.k)
        left join ranked as r
            on (r.question, r.operator, r.layer, r.ranking, r.neuron)
                = (q.question, q.operator, q.layer, q.ranking, n.neuron)
            and r.rank <= s.k
        where s.k <= q.known
        group by all
    ),
    possible as (
        select
            width, size, k,
            unnest(range(larger(0, k + size - width), smaller(k, size) + 1)) as shared
        from (select distinct width, size, k from compared)
    ),
    -- binomial(size, shared) * binomial(width - size, k - shared) / binomial(width, k), summed from
    -- the largest `shared` down
    tails as (
        select
            width, size, k, shared,
            smaller(1, sum(exp(
                lgamma(size + 1) - lgamma(shared + 1) - lgamma(size - shared + 1)
                + lgamma(width - size + 1) - lgamma(k - shared + 1)
                - lgamma(width - size - k + shared + 1)
                - lgamma(width + 1) + lgamma(k + 1) + lgamma(width - k + 1)
            )) over (partition by width, size, k order by shared desc)) as p_value
        from possible
    )
select
    $subject as subject,
    layer, ranking, k, width, question, operator, grid_operator, members, size, shared,
    shared / k as share,
    size / width as chance,
    p_value
from compared
join tails using (width, size, k, shared)
order by layer, ranking, k, question, operator, grid_operator, members
