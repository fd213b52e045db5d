-- CPR and CMD of each ranking, as MIB's circuit track computes them from a curve of faithfulness:
-- trapezoids between ten circuit sizes, 0.1 % to 100 % of the ranked units.
--
-- Heads are nodes as in MIB, with all MLPs kept. MIB's faithfulness is computed from logit
-- differences, this project's from normalised logits. MIB has no level for neurons of MLPs: its
-- neurons are coordinates of a node's output. A size that was not measured lies on the line between
-- the nearest smaller and larger circuit.
--
-- subject       VARCHAR   the model
-- operator      VARCHAR   add, subtract, multiply or divide
-- level         VARCHAR   head: of all heads, those of highest rank are kept; neuron: of each layer
--                         from which neurons are selected, with the heads of the circuit
-- circuit       VARCHAR   the ranking, as in head_faithfulness and faithfulness
-- seed          INTEGER   seed of a random ranking, from 0; null otherwise
-- units         INTEGER   heads of the model, or neurons of a layer
-- cpr           DOUBLE    area under the curve; 0.999 if every size is as good as the whole model
-- cmd           DOUBLE    area between the curve and 1; 0 if every size is as good as the model
-- interpolated  BIGINT    sizes, of ten, that were not measured
with
    measured as (
        select operator, 'head' as level, circuit, seed, heads as size, faithfulness
        from head_faithfulness where subject = $subject
        union all
        select operator, 'neuron', circuit, seed, neurons_per_layer, faithfulness
        from faithfulness where subject = $subject and experiment = 'neuron_circuit'
    ),
    rankings as (
        select distinct
            operator, level, circuit, seed,
            if(level = 'head', heads * layers, neurons)::integer as units
        from measured join architecture on subject = $subject
        where circuit not in ('everything', 'nothing', 'nothing_own_means', 'heads')
    ),
    curves as (
        select *, row_number() over (order by operator, level, circuit, seed) as curve
        from rankings
    ),
    points as (
        select curve, size, faithfulness
        from measured join curves using (operator, level, circuit)
        where curves.seed is not distinct from measured.seed
        union  -- seed 0 also stands for the other seeds where all rankings are the same
        select curve, size, faithfulness
        from measured join curves using (operator, level, circuit)
        where measured.seed = 0 and curves.seed > 0 and size in (0, units)
        union  -- all neurons are kept
        select curve, size, faithfulness
        from measured join curves using (operator, level)
        where level = 'neuron' and measured.circuit = 'heads'
    ),
    sizes as (
        select curve, share, floor(share * units)::integer as size
        from curves, (
            select unnest([.001, .002, .005, .01, .02, .05, .1, .2, .5, 1]::double[]) as share
        )
    ),
    neighbours as (
        select
            sizes.*, below.size as smaller, above.size as larger,
            below.faithfulness as low, above.faithfulness as high
        from sizes
        asof join points as below on below.curve = sizes.curve and below.size <= sizes.size
        asof join points as above on above.curve = sizes.curve and above.size >= sizes.size
    ),
    curve_points as (
        select curve, share, smaller < larger as is_between,
            if(smaller < larger, low + (high - low) * (size - smaller) / (larger - smaller), low)
                as faithfulness
        from neighbours
    ),
    steps as (
        select *,
            share - lag(share) over each_curve as width,
            lag(faithfulness) over each_curve as previous
        from curve_points
        window each_curve as (partition by curve order by share)
    ),
    summed as (
        select
            curve,
            sum(width * (previous + faithfulness) / 2) as cpr,
            sum(width * (abs(1 - previous) + abs(1 - faithfulness)) / 2) as cmd,
            count(*) filter (is_between) as interpolated,
            count(faithfulness) as known
        from steps group by curve
    )
select
    $subject as subject, operator, level, circuit, seed, units,
    if(known = 10, cpr, null) as cpr, if(known = 10, cmd, null) as cmd, interpolated
from summed join curves using (curve)
order by level, operator, circuit, seed
