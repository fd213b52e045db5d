-- Other neurons of the nearest variance: for each late neuron of a set, a neuron of the same layer
-- that is not in the set, with the nearest standard deviation. Random neurons vary less than
-- neurons that have a heuristic, or that a digit explains, and so change less when set to another
-- value. Where a set has the neurons of a layer that vary most, matched neurons vary less, too: std
-- and matched_std show by how much.
--
-- Both sides are sorted by standard deviation, and matched neurons keep this order, so that none is
-- matched twice. Each neuron gets the nearest of all other neurons. Where several share the
-- nearest, they get its neighbours, such that the largest distance from the nearest, in ranks, is
-- the least possible.
--
-- subject      VARCHAR   the model
-- operator     VARCHAR   add, subtract, multiply or divide
-- arm          VARCHAR   set: heuristic (late neurons that have some heuristic) or separating (late
--                        neurons that the digit or carry explains best, as in
--                        steering_interventions)
-- criterion    VARCHAR   criterion by which neurons have heuristics, as in heuristic_neurons:
--                        label, fdr or threshold; null for separating
-- place        VARCHAR   what separating neurons steer: ones, tens, asked or carry, as in
--                        steering_targets; null for heuristic
-- neurons      INTEGER   number of neurons of the set
-- layer        SMALLINT  late layer, from 0
-- neuron       INTEGER   neuron of the set, from 0
-- std          DOUBLE    standard deviation of its activation over the operator's cells
-- matched      INTEGER   neuron of the same layer that is matched to it, from 0; null for the
--                        neurons that vary least if the set has more neurons of the layer than
--                        there are others
-- matched_std  DOUBLE    standard deviation of the matched neuron's activation over the operator's
--                        cells; null without a matched neuron
with
    late as (
        select operator, layer, neuron, sqrt(variance) as std from neuron_sums where cells > 0
    ),
    ranked as (
        select operator, place, layer, unnest(range(len(shares))) as neuron,
            unnest(shares) as share
        from digit_means where digit = 0
    ),
    separating as (
        select *,
            row_number() over (
                partition by operator, place order by share desc, layer, neuron
            ) as rank,
            count(*) over (partition by operator, place) as most
        from ranked
    ),
    sets as (
        select distinct operator, 'heuristic' as arm, criterion, null as place, null as size,
            layer, neuron
        from heuristic_neurons where late
        union all
        select distinct operator, 'separating', null, place, smaller(k, most), layer, neuron
        from separating, (select unnest($steered_neurons::bigint[]) as k) where rank <= k
    ),
    numbered as (
        select *, dense_rank() over (order by operator, arm, criterion, place, size) as number
        from sets
    ),
    considered as (  -- every neuron of the sets' layers
        select number, layer, neuron, std, numbered.neuron is not null as is_member
        from (select distinct number, operator, layer from numbered)
        join late using (operator, layer)
        left join numbered using (number, operator, layer, neuron)
    ),
    compared as (
        select *,
            count(*) filter (where not is_member) over lower_side as below,
            max(std) filter (where not is_member) over lower_side as std_below,
            min(std) filter (where not is_member) over upper_side as std_above,
            row_number() over (partition by number, layer, is_member order by std, neuron) as rank,
            count(*) filter (where is_member) over (partition by number, layer) as members,
            count(*) filter (where not is_member) over (partition by number, layer) as others
        from considered
        window
            lower_side as (
                partition by number, layer order by std, neuron
                rows between unbounded preceding and current row
            ),
            upper_side as (
                partition by number, layer order by std, neuron
                rows between current row and unbounded following
            )
    ),
    shifted as (  -- the rank of the nearest other neuron - the neuron's own rank in its set
        select *,
            below + if(below = 0 or std_above - std < std - std_below, 1, 0) - rank as shift
        from compared where is_member
    ),
    placed as (  -- neither bound of a shift falls with rank, so all partners differ
        select *, rank + (max(shift) over lower_side + min(shift) over upper_side) // 2 as middle
        from shifted
        window
            lower_side as (
                partition by number, layer order by rank
                rows between unbounded preceding and current row
            ),
            upper_side as (
                partition by number, layer order by rank
                rows between current row and unbounded following
            )
    ),
    partners as (
        select number, layer, neuron, std,
            smaller(larger(middle, rank), others - members + rank) as partner
        from placed
    ),
    paired as (
        select partners.*, other.neuron as matched, other.std as matched_std
        from partners
        left join (from compared where not is_member) as other
            on (other.number, other.layer, other.rank)
                = (partners.number, partners.layer, partners.partner)
    )
select
    $subject as subject, operator, arm, criterion, place,
    (count(*) over (partition by number))::integer as neurons,
    layer::smallint as layer, neuron::integer as neuron, std, matched::integer as matched,
    matched_std
from numbered join paired using (number, layer, neuron)
order by operator, arm, criterion, place, neurons, layer, neuron
