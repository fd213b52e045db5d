-- Map of one neuron
-- Activation on addition of a neuron whose label is a range of the result. The activation is large
-- on a diagonal band, where the sum is in this range. Of all such neurons, the query selects the
-- neuron whose strongest Fourier component explains most of the map's variance.
select op1, op2, activation
from activations
where
    subject = $subject and operator = 'add'
    and (layer, neuron) = (
        select (layer, neuron)
        from labels join spectra using (subject, operator, layer, neuron)
        where subject = $subject and operator = 'add' and labels.rank = 1 and spectra.rank = 1
        order by kind = 'range' and quantity = 'result' desc, share desc, layer, neuron
        limit 1
    )
order by op1, op2
