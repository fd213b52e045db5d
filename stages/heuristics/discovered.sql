-- The best predicate of each neuron, and whether it is discovered: whether it describes the
-- neuron's activations better than any predicate describes them with the operands relabelled.
--
-- Every neuron competes with its decoy, the same neuron with relabelled operands, and the larger
-- gain wins. If labels do not matter, both win equally often, by whatever lead. So the decoys that
-- win with a lead of at least g estimate how many neurons do by chance (Elias and Gygi 2007; one
-- more decoy makes the estimate valid: Barber and Candes 2015). The lead counts, not the gain:
-- where few values have most cells, some decoys gain more than most neurons. One relabelling per
-- neuron suffices, since all neurons of an operator are compared together.
--
-- subject             VARCHAR   the model
-- operator            VARCHAR   add, subtract, multiply or divide
-- layer               SMALLINT  decoder layer, from 0
-- neuron              INTEGER   neuron of the layer's MLP, from 0
-- predicate           VARCHAR   SQL condition on op1, op2 and result that makes the description of
--                               the predicate and the activations together the shortest
-- atoms               TINYINT   number of conditions that the predicate joins, 1 or 2
-- bits                FLOAT     length of the predicate in bits
-- gain                FLOAT     bits by which the predicate makes the description of the
--                               activations shorter, its own bits subtracted; above 0
-- decoy_gain          FLOAT     largest gain of any predicate with the operands relabelled
-- q_value             DOUBLE    false discovery rate, 0 to 1, if all neurons of the operator are
--                               discovered whose gain leads the decoy's by as much; null if the
--                               decoy's gain is larger
-- discovered          BOOLEAN   whether q_value is at most $level
-- side                VARCHAR   top or bottom: whether activations are larger or smaller, on
--                               average, where the predicate holds
-- explained_training  FLOAT     share of the variance of training cells that the predicate
--                               explains, 0 to 1
-- explained           FLOAT     share of the variance of held-out cells that the predicate
--                               explains, at most 1; below 0 is worse than predicting the mean
-- sum_explained       FLOAT     share of the variance of held-out cells that the predicate's two
--                               conditions explain as a sum of two terms, without a conjunction;
--                               null unless there are two
-- same_as             VARCHAR   heuristic of the catalogue that the same cells satisfy, or exactly
--                               the other cells; null if the catalogue has none
-- catalogue           VARCHAR   heuristic of the catalogue that explains the largest share of the
--                               variance of training cells
-- catalogue_bits      FLOAT     bits that select a heuristic of the catalogue
-- catalogue_gain      FLOAT     gain of this heuristic; may be negative
-- catalogue_explained FLOAT     share of the variance of held-out cells that this heuristic
--                               explains, at most 1
-- short               VARCHAR   predicate of at most catalogue_bits bits that explains the largest
--                               share of the variance of training cells
-- short_explained     FLOAT     share of the variance of held-out cells that this short predicate
--                               explains, at most 1
with
    competing as (
        select
            operator, layer, neuron, abs(gain - decoy_gain) as lead,
            (gain > decoy_gain)::integer as own, (decoy_gain > gain)::integer as of_decoy
        from discovery_search where gain <> decoy_gain
    ),
    counted as (
        select
            operator, lead,
            sum(sum(own)) over higher as neurons, sum(sum(of_decoy)) over higher as decoys
        from competing group by operator, lead
        window higher as (partition by operator order by lead desc)
    ),
    controlled as (
        select
            operator, lead,
            smaller(1, min((decoys + 1) / larger(neurons, 1)) over (
                partition by operator order by lead
                rows between unbounded preceding and current row
            )) as q_value
        from counted
    )
select
    $subject as subject, operator, layer, neuron, predicate, atoms, bits, gain, decoy_gain,
    case when own = 1 then q_value end as q_value,
    own = 1 and q_value <= $level::double as discovered,
    side, explained_training, explained, sum_explained, same_as, catalogue, catalogue_bits,
    catalogue_gain, catalogue_explained, short, short_explained
from discovery_search
join competing using (operator, layer, neuron)
join controlled using (operator, lead)
where predicate is not null
order by operator, layer, neuron
