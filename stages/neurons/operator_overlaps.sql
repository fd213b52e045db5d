-- Whether two operators use the same neurons (App. D, Fig. 15): the overlap of their neurons with
-- the largest patched effects. If not every neuron was patched, k is at most patched_neurons. A
-- neuron that was patched for one operator only is then not among the other operator's top neurons.
--
-- subject     VARCHAR   the model
-- ranking     VARCHAR   what ranks neurons: effect (Eq. 1) or logit_effect
-- operator_a  VARCHAR   one operator
-- operator_b  VARCHAR   the other operator, later in the alphabet
-- layer       SMALLINT  decoder layer, from 0; null: the top k of each late layer together
-- position    VARCHAR   role of the token: op1, operator, op2, or last (late layers)
-- k           INTEGER   number of top neurons of each layer
-- iou         DOUBLE    neurons in both sets / neurons in either set, 0 to 1
-- chance      DOUBLE    IoU of two sets of k of n neurons that share k²/n neurons, as random sets
--                       do on average: k / (2n - k)
with
    ranked as (from neuron_rankings() where ranking <> 'effect_plus_std'),
    widths as (
        select layer, position, count(distinct neuron) as neurons
        from neuron_effects
        group by all
    ),
    tops as (
        select ranking, operator, layer, position, k, list(neuron) filter (rank <= k) as neurons
        from ranked cross join (select unnest($operator_ks)::integer as k)
        where $patched_neurons = 0 or k <= $patched_neurons
        group by all
        having k <= count(*)
    ),
    -- The expected IoU of random sets lies above chance (by 1 % at 50 of 512), because IoU is
    -- convex in the number of shared neurons.
    layers as (
        select
            ranking,
            a.operator as operator_a,
            b.operator as operator_b,
            layer, position, k, widths.neurons,
            len(list_intersect(a.neurons, b.neurons)) as shared
        from tops as a
        join tops as b using (ranking, layer, position, k)
        join widths using (layer, position)
        where a.operator < b.operator
    )
select
    $subject as subject,
    ranking, operator_a, operator_b, layer, position, k,
    sum(shared) / sum(2 * k - shared) as iou,
    k / (2 * avg(neurons) - k) as chance
from layers
group by grouping sets (
    (ranking, operator_a, operator_b, layer, position, k),
    (ranking, operator_a, operator_b, position, k)
)
having layer is not null or position = 'last'
order by ranking, operator_a, operator_b, position, layer nulls last, k
